//! llama-server as a remote replica: a scripted one, which sends what the real one does.

use serde_json::{Value, json};

use crate::remote::{ask, remote, served};
use crate::scripted::{Scripted, Then, stream};
use crate::served::Served;

fn relaying_to(peer: &Scripted) -> Served {
    served(0, &[remote(&peer.address, ", api = \"llama-server\"")])
}

#[test]
fn its_tokens_come_back_with_those_that_it_leaves_out_within_a_character() {
    // An emoji is four tokens of a byte each, of which it sends the last one; the tokens before it are found.
    let peer = Scripted::new(
        stream!(
            "data: {\"content\":\"A\",\"tokens\":[36],\"stop\":false,\"tokens_predicted\":1}\n\n",
            ":\n\n",
            "data: {\"content\":\"\u{1f600}\",\"tokens\":[222],\"stop\":false,\"tokens_predicted\":5}\n\n",
            "data: {\"content\":\"\",\"tokens\":[],\"stop\":true,\"stop_type\":\"eos\",\
             \"tokens_predicted\":5}\n\n"
        ),
        Then::Close,
    );
    let server = relaying_to(&peer);
    let more = json!({"temperature": 0.5, "prompt": [5, 6], "return_token_ids": true});
    let choice = ask(&server, more).json()["choices"][0].clone();
    assert_eq!(choice["token_ids"], json!([36, 172, 253, 246, 222]), "{choice}");
    assert!(choice["text"].as_str().unwrap().ends_with('\u{1f600}'), "{choice}");
    assert_eq!(choice["finish_reason"], "stop");
    let (line, body) = peer.asked().remove(0);
    assert_eq!(line.trim(), "POST /completion HTTP/1.1");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["prompt"], &body["n_predict"]), (&json!([5, 6]), &json!(12)));
    assert_eq!((&body["temperature"], &body["min_p"]), (&json!(0.5), &json!(0.0)));
}

#[test]
fn what_it_cannot_do_is_refused_before_it_is_asked() {
    let peer = Scripted::new("", Then::Close);
    let server = relaying_to(&peer);
    for more in [
        json!({"presence_penalty": 0.5}),
        json!({"frequency_penalty": 0.5}),
        json!({"min_tokens": 2}),
        json!({"ignore_eos": true}),
        json!({"allowed_token_ids": [5]}),
        json!({"logprobs": 1}),
    ] {
        let refused = ask(&server, more.clone());
        assert_eq!(refused.status, 400, "{more}: {}", refused.text());
        assert_eq!(refused.value()["error"]["code"], "not_relayed", "{more}");
    }
    assert_eq!(peer.count(), 0);
}

#[test]
fn its_errors_are_typed_and_a_server_that_loads_its_model_is_asked_again() {
    let loading = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n\
                   {\"error\":{\"message\":\"Loading model\",\"type\":\"unavailable_error\",\"code\":503}}";
    let too_long = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n\
                    {\"error\":{\"message\":\"exceeds the context\"}}";
    let text_only = stream!("data: {\"content\":\"a\",\"stop\":false}\n\n");
    let lost = stream!(
        "data: {\"content\":\"\u{1f600}\",\"tokens\":[222],\"stop\":false,\"tokens_predicted\":3}\n\n"
    );
    let failed = stream!("data: {\"error\":{\"code\":500,\"message\":\"no memory\"}}\n\n");
    for (bytes, says, times) in [
        (loading, "503: Loading model", 2),
        (too_long, "400: exceeds the context", 1),
        (text_only, "without token ids", 1),
        (lost, "left out the tokens of a character", 1),
        (failed, "no memory", 1),
    ] {
        let peer = Scripted::new(bytes, Then::Close);
        let response = ask(&relaying_to(&peer), json!({}));
        assert_eq!(response.status, 503, "{bytes}: {}", response.text());
        let error = &response.value()["error"];
        assert_eq!(error["code"], "remote_failed", "{bytes}: {error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{bytes}: {error}");
        assert_eq!(peer.count(), times, "{bytes}");
    }
}
