//! What the endpoints that generate text have in common: from the route of a request to its response.
//!
//! ```text
//! route -> begin in the first choice -> refused for load: begin in the second one -> shadow -> whole or streamed
//! ```

use std::future::Future;

use axum::Json;
use axum::response::{IntoResponse, Response};
use l5_scheduler::EngineRequest;
use l6_ensemble::router::Part;
use serde::Serialize;

use crate::choices::{self, ChoiceDelta, Choices, StreamFormat};
use crate::dispatch::{Dispatch, RequestFacts};
use crate::error::ApiError;
use crate::json::parsed_size::MemoryPermit;
use crate::lanes::{Lanes, ServedLane};
use crate::middleware::RequestContext;
use crate::middleware::key::Tenant;
use crate::protocol::common::{Sampling, Usage};
use crate::protocol::routing::Routing;
use crate::request::Generation;
use crate::response_headers;
use crate::route_trace::RouteTrace;
use crate::shadows::{self, MAX_KEPT_BYTES};

/// A request of one of the endpoints.
pub(super) trait GenerationRequest: Clone + Send + 'static {
    /// Format of its response.
    type Format: ResponseFormat;

    /// Model that it names.
    fn model(&self) -> Option<&str>;

    /// Fields that the router reads.
    fn routing(&self) -> &Routing;

    /// Fields of sampling.
    fn sampling(&self) -> &Sampling;

    /// Parts that the router looks at.
    fn parts(&self) -> Vec<Part<'_>>;

    /// Whether it has tools.
    fn has_tools(&self) -> bool;

    /// Number of prompts.
    fn num_prompts(&self) -> usize;

    /// Bytes of its texts. `None`: its prompt is token ids, which mean another text in another lane.
    fn text_bytes(&self) -> Option<usize>;

    /// Prepares the request for a lane and submits it. `memory` is given back when it is prepared.
    fn begin(
        self,
        served: &ServedLane,
        context: RequestContext,
        tenant: Tenant,
        memory: Option<MemoryPermit>,
    ) -> impl Future<Output = Result<(Choices, Self::Format), ApiError>> + Send;

    /// The request as its shadow's lane gets it.
    fn prepare_shadow(
        self,
        generation: Generation,
        tenant: Tenant,
    ) -> impl Future<Output = Result<EngineRequest, ApiError>> + Send + 'static;

    /// What its shadow depends on.
    fn facts(&self) -> RequestFacts {
        let sampling = self.sampling();
        let samples = sampling.n.unwrap_or(1).max(sampling.best_of.unwrap_or(1)) as usize;
        RequestFacts {
            high_stakes: self.routing().high_stakes == Some(true),
            tools: self.has_tools(),
            choices: self.num_prompts().saturating_mul(samples),
            guided: sampling.is_guided() || sampling.chooses_tokens(),
            may_be_kept: self.text_bytes().is_some_and(|bytes| bytes <= MAX_KEPT_BYTES),
        }
    }
}

/// Format of a response.
pub(super) trait ResponseFormat: Send + 'static {
    /// Its events.
    type Stream: StreamFormat;

    /// Its object.
    type Whole: Serialize;

    /// Formats a response that is streamed.
    fn stream(self) -> Self::Stream;

    /// Formats a response whose choices have all ended.
    fn whole(self, outputs: Vec<ChoiceDelta>, usage: Usage) -> Self::Whole;
}

/// Serves a request.
///
/// # Errors
/// [`ApiError`], before the first output.
pub(super) async fn generate<R: GenerationRequest>(
    lanes: Lanes,
    context: RequestContext,
    tenant: Tenant,
    request: R,
    memory: MemoryPermit,
) -> Result<Response, ApiError> {
    let streams = request.sampling().stream == Some(true);
    // A tool that must be called is a guide as well.
    let sampling = request.sampling();
    let guide = sampling.guide_field().unwrap_or("tool_choice");
    let ranks = sampling.best_of.unwrap_or(1) > sampling.n.unwrap_or(1);
    let mut trace = RouteTrace::begin(&lanes, &context);
    let routed = lanes.route(request.model(), request.routing(), || request.parts());
    trace.routed(&lanes, routed.as_ref());
    let routed = routed?;
    let adapted = lanes.of_adapter(request.model(), &context)?;
    let facts = request.facts();
    let mut dispatch = Dispatch::new(&lanes, &context, routed, &facts);
    let mut kept = dispatch.keeps_request().then(|| request.clone());
    // The memory is that of the request: given back when it is tokenized or, if it is kept, when it is admitted.
    let (memory, kept_memory) =
        if kept.is_none() { (Some(memory), None) } else { (None, Some(memory)) };
    let first = adapted.as_ref().unwrap_or(&lanes[dispatch.lane()]);
    let mut begun = request.begin(first, context.clone(), tenant, memory).await;
    if let Err(refused) = &begun {
        trace.refused(&lanes, dispatch.lane(), refused);
        if let Some((lane, request)) = dispatch.spill_lane(refused).zip(kept.take()) {
            match request.begin(&lanes[lane], context.clone(), tenant, None).await {
                Ok(spilled) => {
                    dispatch.spill(lane, refused);
                    begun = Ok(spilled);
                }
                Err(why) => trace.refused(&lanes, lane, &why),
            }
        }
    }
    drop(kept_memory);
    let mut dispatched = dispatch.end(begun.as_ref().err());
    let (choices, format) = begun.map_err(|why| why.naming_relayed(guide, ranks))?;
    trace.admitted(&lanes, &dispatched.routed, choices.responses());
    let grant = dispatched.grant_shadow(&lanes, &context);
    let shadow = grant.zip(kept).map(|(mut grant, request)| {
        trace.shadowed(&lanes, grant.lane);
        grant.route = trace.number();
        let generation = lanes[grant.lane].generation.clone();
        (grant, request.prepare_shadow(generation, tenant))
    });
    // It is on its way, and recorded.
    drop(trace);
    let checked = (!facts.guided).then_some(&*context.id().0);
    let primary = shadows::observe(&lanes, &dispatched, checked, shadow);
    let mut choices = choices.observed(primary);
    let routed = &dispatched.routed;
    let served = adapted.as_ref().unwrap_or(&lanes[routed.lane]);
    if streams {
        choices.begun().await?;
        let head = response_headers::headers(served, routed, choices.responses());
        let mut response = choices::stream(choices, format.stream());
        response.headers_mut().extend(head);
        return Ok(response);
    }
    let outputs = choices.all().await?;
    let body = Json(format.whole(outputs, choices.usage()));
    Ok((response_headers::headers(served, routed, choices.responses()), body).into_response())
}
