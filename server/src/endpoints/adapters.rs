//! `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`.

use std::path::{Path, PathBuf};

use axum::extract::State;

use crate::adapters::{Adapters, disabled};
use crate::error::{ApiError, quoted};
use crate::json::Body;
use crate::lanes::Lanes;
use crate::middleware::RequestContext;
use crate::openapi::AdapterErrors;
use crate::protocol::adapters::{LoadLoraAdapter, UnloadLoraAdapter};

/// Maximum length of a path, in bytes: Linux opens no longer ones.
const MAX_PATH_BYTES: usize = 4096;

/// Loads a LoRA adapter from a directory of the server. Requests with its name as `model` run with it.
///
/// # Errors
/// 400 for an adapter that cannot be loaded, and for a name that is taken; 404 on a server without adapters; 503 if
/// there is no room for another adapter, or if its files are not read in time.
#[utoipa::path(post, path = "/v1/load_lora_adapter", request_body = LoadLoraAdapter, security((), ("key" = [])),
    responses(
        (status = 200, description = "The adapter is loaded", body = String, content_type = "text/plain"),
        AdapterErrors,
    ))]
pub async fn load(
    State(lanes): State<Lanes>,
    context: RequestContext,
    Body(request, memory): Body<LoadLoraAdapter>,
) -> Result<String, ApiError> {
    let LoadLoraAdapter { lora_name, lora_path, load_inplace } = request;
    // What is left of the body is small. It may wait for long.
    drop(memory);
    context.adapted(&quoted(&lora_name));
    let adapters = adapters(&lanes)?;
    if lora_path.is_empty() {
        let message = "`lora_path` must be the directory of a LoRA adapter";
        return Err(ApiError::param("lora_path", message));
    }
    check_path(&lora_path)?;
    let path = PathBuf::from(&lora_path);
    let loaded = adapters.load(lora_name.clone(), path.clone(), load_inplace == Some(true)).await;
    loaded.map_err(|why| said_where(why, &path))?;
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully."))
}

/// Unloads a LoRA adapter. Requests that run with it finish.
///
/// # Errors
/// 404 for an adapter that is not loaded, and on a server without adapters.
#[utoipa::path(post, path = "/v1/unload_lora_adapter", request_body = UnloadLoraAdapter, security((), ("key" = [])),
    responses(
        (status = 200, description = "The adapter is unloaded", body = String, content_type = "text/plain"),
        AdapterErrors,
    ))]
pub async fn unload(
    State(lanes): State<Lanes>,
    context: RequestContext,
    Body(request, memory): Body<UnloadLoraAdapter>,
) -> Result<String, ApiError> {
    let UnloadLoraAdapter { lora_name } = request;
    drop(memory);
    context.adapted(&quoted(&lora_name));
    adapters(&lanes)?.unload(lora_name.clone()).await?;
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}

/// Adds to an error about a relative path where it begins: a client does not know that.
fn said_where(mut why: ApiError, path: &Path) -> ApiError {
    if why.param.as_deref() == Some("lora_path")
        && path.is_relative()
        && let Ok(from) = std::env::current_dir()
    {
        why.message = format!("{} (`lora_path` is relative to {}.)", why.message, from.display());
    }
    why
}

/// Refuses paths that no directory has, before anything reads or logs them.
fn check_path(path: &str) -> Result<(), ApiError> {
    let why = if path.len() > MAX_PATH_BYTES {
        format!("has {} bytes, the maximum is {MAX_PATH_BYTES}", path.len())
    } else if path.chars().any(char::is_control) {
        "has control characters".to_owned()
    } else {
        return Ok(());
    };
    let message = format!("`lora_path` {why}: give the directory of a LoRA adapter.");
    Err(ApiError::param("lora_path", message).with_code("invalid_adapter"))
}

fn adapters(lanes: &Lanes) -> Result<&Adapters, ApiError> {
    lanes.adapters().ok_or_else(disabled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_relative_path_says_where_that_begins() {
        let of = |param, path| said_where(ApiError::param(param, "No."), Path::new(path)).message;
        assert!(of("lora_path", "sql").starts_with("No. (`lora_path` is relative to /"));
        assert_eq!(of("lora_path", "/sql"), "No.");
        assert_eq!(of("lora_name", "sql"), "No.");
    }

    #[test]
    fn paths_that_are_too_long_or_have_control_characters_are_refused() {
        for path in ["a\nb", "\0", "\u{1b}[31m", &"x".repeat(MAX_PATH_BYTES + 1)] {
            let why = check_path(path).expect_err("the path is refused");
            assert_eq!(why.code, Some("invalid_adapter"));
            assert!(why.message.len() < 200, "{}", why.message);
        }
        check_path(&"x".repeat(MAX_PATH_BYTES)).expect("the longest path is taken");
    }
}
