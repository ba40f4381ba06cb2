//! `strata serve`: an OpenAI-compatible server.

use std::net::{IpAddr, Ipv4Addr};

use l2_model::chat_template;
use l5_scheduler::engine::EngineModel;
use l5_scheduler::{Engine, EngineOptions};

use super::args::{ModelArgs, RuntimeArgs};
use super::context::Context;
use crate::hub;
use crate::server::chat::reasoning::ReasoningFormat;
use crate::server::chat::tools::ToolFormat;
use crate::server::life::Life;
use crate::server::metrics::Metrics;
use crate::server::model::{GenerationDefaults, unix_time};
use crate::server::{App, ServedModel, Server, ServerOptions};

/// Answer OpenAI's API over HTTP
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    run: RuntimeArgs,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port to listen on; 0 takes any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// The names that requests may call the model by; the first is the one in responses [default: what --model says]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    served_model_name: Vec<String>,
}

/// Run the subcommand.
///
/// # Errors
/// What device, hub, checkpoint and socket report.
pub fn run(args: &ServeArgs, context: &Context) -> anyhow::Result<()> {
    let source = hub::resolve(&args.model.model, &context.hub())?;
    let model = EngineModel::open(source.path(), args.run.options())?;
    let Some(tokenizer) = model.tokenizer.clone() else {
        anyhow::bail!("{} has no tokenizer: a server needs one", args.model.model);
    };
    let template = chat_template(&tokenizer)?;
    let text = tokenizer.chat_template().unwrap_or_default().to_owned();
    let engine = Engine::new(model, &EngineOptions::default())?;
    let served = ServedModel {
        names: match args.served_model_name.as_slice() {
            [] => vec![args.model.model.clone()],
            names => names.to_vec(),
        },
        root: args.model.model.clone(),
        tools: ToolFormat::detect(&text),
        reasoning: ReasoningFormat::detect(&text),
        defaults: GenerationDefaults::default(),
        max_model_len: engine.handle().config().max_model_len,
        created: unix_time(),
        tokenizer,
        template,
    };
    let options = ServerOptions { host: args.host, port: args.port, ..ServerOptions::default() };
    let app = App {
        engine: engine.handle().clone(),
        model: served,
        options,
        metrics: Metrics::default(),
        life: Life::default(),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::bind(app).await?;
        println!("http://{}", server.address()?);
        server.run().await
    })?;
    Ok(())
}
