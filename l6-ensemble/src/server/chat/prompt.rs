//! From a conversation to the tokens of a prompt.

use l2_model::chat_template::Message;
use serde_json::{Map, Value};

use crate::server::error::ApiError;
use crate::server::model::ServedModel;
use crate::server::protocol::chat::{ChatMessage, Content, Tool};

/// What a conversation is rendered with.
#[derive(Clone, Debug, Default)]
pub struct Rendering<'a> {
    /// What the model may call.
    pub tools: &'a [Tool],
    /// Variables of the template.
    pub variables: Map<String, Value>,
    /// Whether the head of the answer is added.
    pub add_generation_prompt: bool,
    /// Whether the last message is the beginning of the answer, and left open.
    pub continue_final_message: bool,
}

/// The prompt's text, as the model's template writes it.
///
/// # Errors
/// [`ApiError`]: no template, parts that are not text, a conversation that the template refuses.
pub fn render(
    model: &ServedModel,
    messages: &[ChatMessage],
    rendering: &Rendering<'_>,
) -> Result<String, ApiError> {
    let Some(template) = &model.template else {
        let message = "this model has no chat template: use /v1/completions, or start the server with --chat-template";
        return Err(ApiError::invalid(message).with_code("no_chat_template"));
    };
    let messages: Result<Vec<_>, _> = messages.iter().enumerate().map(message).collect();
    let mut variables = rendering.variables.clone();
    if !rendering.tools.is_empty() {
        let tools = serde_json::to_value(rendering.tools);
        variables.insert("tools".into(), tools.map_err(|e| ApiError::internal(e.to_string()))?);
    }
    let text = template.render(&messages?, rendering.add_generation_prompt, &variables);
    text.map_err(|why| ApiError::param("messages", why.to_string()))
}

fn message((at, message): (usize, &ChatMessage)) -> Result<Message, ApiError> {
    let mut fields = Map::new();
    fields.insert("role".into(), message.role.clone().into());
    match &message.content {
        None => {}
        Some(Content::Text(text)) => _ = fields.insert("content".into(), text.clone().into()),
        Some(Content::Parts(parts)) => {
            let text: Option<String> = parts.iter().map(|part| part.text.as_deref()).collect();
            let path = format!("messages[{at}].content");
            let text = text.ok_or_else(|| ApiError::param(&path, "only parts of text are read"))?;
            fields.insert("content".into(), text.into());
        }
    }
    fields.extend(message.more.clone());
    let path = format!("messages[{at}]");
    Message::from_value(Value::Object(fields), &path)
        .map_err(|why| ApiError::param(path, why.to_string()))
}
