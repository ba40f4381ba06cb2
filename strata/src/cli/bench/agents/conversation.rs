//! The conversation of a job: prompts that grow to the length that each turn has.

use bytes::Bytes;
use l2_model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::jobs::{AgentJob, Prefix, Turn};
use crate::cli::bench::random::Random;
use crate::cli::bench::serve::dataset::{Endpoint, WORDS};
use crate::cli::bench::span::Span;

/// Attempts to find a text of exactly so many tokens.
const MAX_ATTEMPTS: usize = 8;

/// What the requests of all jobs have in common.
pub(super) struct Form {
    pub endpoint: Endpoint,
    pub model: String,
    /// By which text is measured.
    pub tokenizer: Option<Tokenizer>,
    /// Range of token ids of prompts.
    pub ids: Span,
    /// Whether outputs are made to call the turn's tool.
    pub write_calls: bool,
}

/// Tokens of a response, as the server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub prompt: Option<usize>,
    pub cached: Option<usize>,
    pub completion: Option<usize>,
}

impl Counts {
    fn of(response: &Value) -> Self {
        let count = |path: &str| Some(response.pointer(path)?.as_u64()? as usize);
        Self {
            prompt: count("/usage/prompt_tokens"),
            cached: count("/usage/prompt_tokens_details/cached_tokens"),
            completion: count("/usage/completion_tokens"),
        }
    }
}

/// A conversation so far.
pub(super) struct Conversation<'a> {
    form: &'a Form,
    random: Random,
    history: History,
    /// Tokens of the history, by the server's count if it counts.
    tokens: usize,
    /// Tokens of the last prompt by the client's count.
    sent: usize,
    /// Tokens that the chat template adds to a message, as far as the last turn shows.
    overhead: usize,
}

enum History {
    Messages(Vec<Value>),
    Ids(Vec<u32>),
}

impl<'a> Conversation<'a> {
    /// Creates the conversation of job `number`, with the prefix that it shares.
    pub(super) fn new(form: &'a Form, seed: u64, number: usize, prefix: Option<&Prefix>) -> Self {
        let history = match form.endpoint {
            Endpoint::Completions => History::Ids(Vec::new()),
            Endpoint::Chat => History::Messages(Vec::new()),
        };
        // Not the numbers that the job's lengths and times were drawn from.
        let random = Random::of_job(!seed, number);
        let mut own = Self { form, random, history, tokens: 0, sent: 0, overhead: 0 };
        if let Some(prefix) = prefix {
            let key =
                prefix.id.bytes().fold(seed, |key, byte| key.rotate_left(7) ^ u64::from(byte));
            let theirs = std::mem::replace(&mut own.random, Random::new(key));
            own.append("system", prefix.tokens);
            own.random = theirs;
            own.tokens = prefix.tokens;
        }
        own
    }

    /// Body of the next turn's request. What is new makes the prompt as long as the turn says.
    pub(super) fn request(&mut self, job: &AgentJob, turn: &Turn, last: bool) -> Bytes {
        let new = turn.prompt_tokens.saturating_sub(self.tokens + self.overhead).max(1);
        self.append("user", new);
        self.sent = self.tokens + new;
        let mut body = json!({
            "model": self.form.model,
            "max_tokens": turn.output_tokens,
            "temperature": 0,
            "ignore_eos": true,
        });
        match &self.history {
            History::Messages(messages) => body["messages"] = json!(messages),
            History::Ids(ids) => {
                body["prompt"] = json!(ids);
                body["return_token_ids"] = json!(true);
            }
        }
        if job.has_id {
            body["job_id"] = json!(job.job);
            body["is_last_step"] = json!(last);
        }
        if let Some(tenant) = &job.tenant {
            body["cache_salt"] = json!(tenant);
        }
        if job.priority != 0 {
            body["priority"] = json!(job.priority);
        }
        if let (true, Some(tool)) = (self.form.write_calls, &turn.tool) {
            body["structured_outputs"] = json!({"regex": call_of(tool)});
            // The guide leaves it open where the command ends.
            body["min_tokens"] = json!(turn.output_tokens);
        }
        body.to_string().into()
    }

    /// Appends a response. Returns what the server counted.
    ///
    /// # Errors
    /// A response without a choice.
    pub(super) fn answered(&mut self, turn: &Turn, response: &Value) -> Result<Counts, String> {
        let choice = response.pointer("/choices/0").ok_or("it has no choices")?;
        let counts = Counts::of(response);
        let completion = counts.completion.unwrap_or(turn.output_tokens);
        match &mut self.history {
            History::Messages(messages) => {
                let text = choice.pointer("/message/content").and_then(Value::as_str);
                messages.push(json!({"role": "assistant", "content": text.unwrap_or_default()}));
            }
            History::Ids(ids) => {
                let own = choice.get("token_ids").and_then(Value::as_array);
                let own = own.map(|ids| ids.iter().filter_map(Value::as_u64).map(|id| id as u32));
                match own {
                    Some(own) => ids.extend(own),
                    // A server that does not say which they were: as many others.
                    None => self.append("assistant", completion),
                }
            }
        }
        self.tokens = counts.prompt.unwrap_or(self.sent) + completion;
        self.overhead = counts.prompt.map_or(0, |prompt| prompt.saturating_sub(self.sent));
        Ok(counts)
    }

    /// Appends a message of so many tokens.
    fn append(&mut self, role: &str, tokens: usize) {
        let Self { form, random, history, .. } = self;
        match history {
            History::Ids(ids) => {
                let id = |_| u32::try_from(random.within(form.ids)).unwrap_or(u32::MAX);
                ids.extend((0..tokens).map(id));
            }
            History::Messages(messages) => {
                let content = text(tokens, form.tokenizer.as_ref(), random);
                messages.push(json!({"role": role, "content": content}));
            }
        }
    }
}

/// Regular expression of an output that begins with a block of shell commands, of which the first one is the tool.
fn call_of(tool: &str) -> String {
    let mut name = String::new();
    for c in tool.chars() {
        if !c.is_alphanumeric() {
            name.push('\\');
        }
        name.push(c);
    }
    format!("```bash\\n{name} [a-z ]*")
}

/// Text of so many tokens: exactly, if the tokenizer can count them and there is such a text.
fn text(tokens: usize, tokenizer: Option<&Tokenizer>, random: &mut Random) -> String {
    let mut words: Vec<&str> = (0..tokens)
        .map(|_| {
            let at = random.below(WORDS.len() as u64) as usize;
            WORDS.get(at).copied().unwrap_or("the")
        })
        .collect();
    let Some(tokenizer) = tokenizer else { return words.join(" ") };
    let count = |text: &str| tokenizer.encode(text, false).map_or(usize::MAX, |ids| ids.len());
    for _ in 0..MAX_ATTEMPTS {
        let found = count(&words.join(" "));
        if found <= tokens {
            break;
        }
        words.truncate((words.len() * tokens / found).min(words.len().saturating_sub(1)));
    }
    let mut text = words.join(" ");
    // What is missing, in parts that are short for every tokenizer.
    for part in [" a", "."] {
        let mut parts = tokens.saturating_sub(count(&text));
        while parts > 0 {
            let longer = text.clone() + &part.repeat(parts);
            let found = count(&longer);
            if found <= tokens {
                text = longer;
                parts = parts.min(tokens - found);
            } else {
                parts /= 2;
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn form(endpoint: Endpoint, tokenizer: Option<&str>) -> Form {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        Form {
            endpoint,
            model: "tiny".to_owned(),
            tokenizer: tokenizer
                .map(|name| l2_model::open_tokenizer(&fixtures.join(name)).unwrap()),
            ids: Span { from: 10, to: 300 },
            write_calls: true,
        }
    }

    fn job() -> AgentJob {
        super::super::jobs::draw(1, 3).remove(0)
    }

    fn body(bytes: &Bytes) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn a_prompt_is_the_history_with_the_output_and_what_is_new() {
        let (form, job) = (form(Endpoint::Completions, None), job());
        let mut talk = Conversation::new(&form, 3, 0, None);
        let mut before: Vec<Value> = Vec::new();
        for (at, turn) in job.turns.iter().enumerate() {
            let body = body(&talk.request(&job, turn, at == 7));
            let prompt = body["prompt"].as_array().unwrap().clone();
            assert_eq!(prompt.len(), turn.prompt_tokens, "turn {at}");
            assert!(prompt.starts_with(&before), "turn {at}");
            assert_eq!(
                (&body["job_id"], &body["is_last_step"]),
                (&json!("agents-3-0"), &json!(at == 7))
            );
            assert_eq!(body["max_tokens"], turn.output_tokens);
            let output: Vec<u32> = (400..).take(turn.output_tokens).collect();
            let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": output.len(),
                "prompt_tokens_details": {"cached_tokens": 16}});
            let response = json!({"choices": [{"token_ids": output}], "usage": usage});
            let counts = talk.answered(turn, &response).unwrap();
            assert_eq!((counts.prompt, counts.cached), (Some(turn.prompt_tokens), Some(16)));
            before = [prompt, output.into_iter().map(Value::from).collect()].concat();
        }
        assert!(talk.answered(&job.turns[0], &json!({"choices": []})).is_err());
    }

    #[test]
    fn the_servers_count_corrects_the_next_turn() {
        let (form, job) = (form(Endpoint::Chat, None), job());
        let mut talk = Conversation::new(&form, 3, 0, None);
        let words = |body: &Value| {
            let last = body["messages"].as_array().unwrap().last().unwrap().clone();
            last["content"].as_str().unwrap().split(' ').count()
        };
        let first = body(&talk.request(&job, &job.turns[0], false));
        assert_eq!(words(&first), 92);
        // The template adds 8 tokens to a message.
        let usage = json!({"prompt_tokens": 100, "completion_tokens": 30});
        let response = json!({"choices": [{"message": {"content": "Hm."}}], "usage": usage});
        talk.answered(&job.turns[0], &response).unwrap();
        let second = body(&talk.request(&job, &job.turns[1], false));
        assert_eq!(words(&second), 469 - 130 - 8);
        assert_eq!(second["messages"][1], json!({"role": "assistant", "content": "Hm."}));
        assert_eq!(second["messages"][0], first["messages"][0]);
    }

    #[test]
    fn a_tokenizer_makes_texts_exact() {
        for name in ["tiny-qwen3", "tiny-llama"] {
            let form = form(Endpoint::Chat, Some(name));
            let tokenizer = form.tokenizer.as_ref().unwrap();
            let mut random = Random::new(1);
            for tokens in [1, 2, 7, 92, 400] {
                let text = text(tokens, Some(tokenizer), &mut random);
                let found = tokenizer.encode(&text, false).unwrap().len();
                assert_eq!(found, tokens, "{name}");
            }
        }
    }

    #[test]
    fn jobs_with_one_prefix_begin_alike_and_no_others_do() {
        let form = form(Endpoint::Chat, None);
        let prefix = |id: &str| Prefix { id: id.to_owned(), tokens: 20 };
        let first = |number, id: &str| {
            let mut talk = Conversation::new(&form, 3, number, Some(&prefix(id)));
            body(&talk.request(&job(), &job().turns[0], false))["messages"].clone()
        };
        let (a, b, c) = (first(0, "p"), first(1, "p"), first(0, "q"));
        assert_eq!(a[0], b[0]);
        assert_ne!(a[1], b[1]);
        assert_ne!(a[0], c[0]);
    }

    #[test]
    fn an_output_calls_the_tool_of_its_turn() {
        assert_eq!(call_of("ls"), "```bash\\nls [a-z ]*");
        assert_eq!(call_of("git.log"), "```bash\\ngit\\.log [a-z ]*");
        let (form, job) = (form(Endpoint::Chat, None), job());
        let mut talk = Conversation::new(&form, 3, 0, None);
        let body_of =
            |talk: &mut Conversation<'_>, turn: &Turn| body(&talk.request(&job, turn, false));
        assert!(body_of(&mut talk, &job.turns[0])["structured_outputs"]["regex"].is_string());
        assert_eq!(body_of(&mut talk, &job.turns[7])["structured_outputs"], Value::Null);
    }
}
