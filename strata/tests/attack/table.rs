//! The attacks: for each a name, what it sends, and how.

use std::time::Duration;

use serde_json::json;

use crate::bodies::{
    self, MIB, all_logprobs, biases, chat, choices, completion, deep_tool, each, echoes,
    expressions, grammars, hard_to_follow, jobs, keys, large_schema, large_tool, list,
    long_prompt_times_n, many_prompts, messages, nasty_stops, nested, parts, required, same_keys,
    same_tools, schemas, spellings, text, tokenise, tools, wide, with,
};
use crate::client::Scene;
use crate::raw;

/// An attack.
#[derive(Clone, Copy)]
pub struct Attack {
    pub name: &'static str,
    pub does: Does,
    /// Whether the server under attack has keys.
    pub keyed: bool,
    /// Whether the attacker has none of them.
    pub stranger: bool,
    /// Whether it is part of a normal run.
    pub short: bool,
}

/// What an attack does.
#[derive(Clone, Copy)]
pub enum Does {
    /// Post bodies over several connections at once.
    Post(Post),
    /// Something with sockets.
    Raw(fn(&Scene)),
}

/// Bodies that are posted.
#[derive(Clone, Copy)]
pub struct Post {
    pub path: &'static str,
    /// What is sent: each connection begins with another body. `usize` is a number that no other attack has.
    pub bodies: fn(usize) -> Vec<Vec<u8>>,
    pub connections: usize,
    /// Requests on each connection, one after another.
    pub rounds: usize,
    pub then: Then,
}

/// What a client does once its request is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Read the response.
    Read,
    /// Read it after a while.
    ReadAfter(Duration),
    /// Vanish.
    Vanish,
}

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";
const TOKENIZE: &str = "/tokenize";
const DETOKENIZE: &str = "/detokenize";

/// Several connections that post the same, once or a few times.
fn post(
    name: &'static str,
    path: &'static str,
    connections: usize,
    rounds: usize,
    bodies: fn(usize) -> Vec<Vec<u8>>,
) -> Attack {
    let does = Does::Post(Post { path, bodies, connections, rounds, then: Then::Read });
    Attack { name, does, keyed: false, stranger: false, short: false }
}

fn raw(name: &'static str, does: fn(&Scene)) -> Attack {
    Attack { name, does: Does::Raw(does), keyed: false, stranger: false, short: false }
}

impl Attack {
    fn then(mut self, then: Then) -> Self {
        if let Does::Post(post) = &mut self.does {
            post.then = then;
        }
        self
    }

    /// Against a server with keys, by a client that has one.
    fn keyed(self) -> Self {
        Self { keyed: true, ..self }
    }

    /// Against a server with keys, by a client that has none.
    fn stranger(self) -> Self {
        Self { keyed: true, stranger: true, ..self }
    }

    /// Part of a normal run, too.
    fn short(self) -> Self {
        Self { short: true, ..self }
    }
}

/// All of them.
pub fn attacks() -> Vec<Attack> {
    [many_answers(), many_tools(), large_json(), guides(), tokens(), errors(), sockets()].concat()
}

/// Small requests that ask for many answers, each of which could hold a copy of something large.
fn many_answers() -> Vec<Attack> {
    vec![
        post("n=128, a schema of 117 KiB", COMPLETIONS, 4, 1, |_| {
            vec![wide("guided_json", &large_schema())]
        }),
        post("n=128, a cache_salt of 1 MiB", COMPLETIONS, 4, 1, |_| {
            vec![wide("cache_salt", &text(MIB))]
        })
        .short(),
        post("n=128, a job_id of 8 MiB", COMPLETIONS, 2, 1, |_| {
            vec![wide("job_id", &text(8 * MIB))]
        })
        .keyed(),
        post("n=128, four million allowed_token_ids", COMPLETIONS, 2, 1, |_| {
            vec![wide("allowed_token_ids", &list("7", 4_000_000))]
        }),
        post("n=128, one token's bias in 5,000 spellings", COMPLETIONS, 2, 1, |_| {
            vec![wide("logit_bias", &spellings(5000))]
        }),
        post("n=128, a bias for a million tokens", COMPLETIONS, 4, 1, |_| {
            vec![wide("logit_bias", &biases(1_000_000))]
        }),
        post("n=128 of long prompts", COMPLETIONS, 8, 1, |_| vec![long_prompt_times_n()]),
        post("128 long prompts", COMPLETIONS, 8, 1, |_| vec![many_prompts()]).keyed(),
        post("a million prompts", COMPLETIONS, 4, 1, |_| {
            vec![with("\"max_tokens\": 1", "prompt", &list("[7]", 1_000_000))]
        }),
        post("a prompt of five million tokens", COMPLETIONS, 4, 1, |_| {
            vec![with("\"n\": 128", "prompt", &list("7", 5_000_000))]
        }),
        post("n=128, stops that nearly come", COMPLETIONS, 2, 1, |_| vec![nasty_stops()]),
        post("n=128, all log probabilities, read late", COMPLETIONS, 4, 1, |_| {
            vec![all_logprobs(true)]
        })
        .then(Then::ReadAfter(Duration::from_secs(1))),
        post("n=128, all log probabilities, whole", COMPLETIONS, 4, 1, |_| {
            vec![all_logprobs(false)]
        }),
        post("1,600 jobs that never end", COMPLETIONS, 8, 200, jobs).keyed(),
        post("n=128, whole answers whose clients vanish", COMPLETIONS, 8, 4, |_| {
            vec![bodies::lengthy()]
        })
        .then(Then::Vanish)
        .short(),
    ]
}

/// Tools.
fn many_tools() -> Vec<Attack> {
    vec![
        post("2,000 tools", CHATS, 8, 2, |_| vec![chat("tools", &tools(2_000))]).keyed(),
        post("10,000 tools", CHATS, 8, 1, |_| vec![chat("tools", &tools(10_000))]),
        post("95,000 tools", CHATS, 4, 1, |_| vec![chat("tools", &tools(95_000))]),
        post("90,000 tools of one name", CHATS, 4, 1, |_| vec![chat("tools", &same_tools(90_000))]),
        post("a tool's description of 15 MiB", CHATS, 4, 1, |_| {
            vec![chat("tools", &large_tool(4, 15 * MIB))]
        }),
        post("a tool's name of 1 MiB", CHATS, 8, 1, |_| vec![required(&large_tool(MIB, 4))]),
        post("a tool's schema of 100 levels", CHATS, 8, 2, |_| {
            vec![required(&deep_tool(55)), chat("tools", &deep_tool(55))]
        }),
        post("10,000 tools of which one is required", CHATS, 4, 1, |_| {
            vec![required(&tools(10_000))]
        })
        .keyed(),
        post("n=128, 900 tools", CHATS, 4, 1, |_| {
            let some = "\"messages\": [{\"role\": \"user\", \"content\": \"Go\"}], \"n\": 128, \"max_tokens\": 20, \"tool_choice\": \"required\"";
            vec![with(some, "tools", &tools(900))]
        }),
    ]
}

/// Bodies whose values are much larger than they are.
fn large_json() -> Vec<Attack> {
    let ignored = |_| {
        vec![
            completion("x", &list("[]", 5 * MIB)),
            completion("x", &list("{}", 5 * MIB)),
            completion("x", &list("\"\"", 5 * MIB)),
            completion("x", &list("7", 8 * MIB)),
        ]
    };
    vec![
        post("16 bodies of 16 MiB in an unknown field", COMPLETIONS, 16, 1, ignored),
        post("16 bodies of 16 MiB without a key", COMPLETIONS, 16, 1, ignored).stranger(),
        post("16 MiB of [ and of {", COMPLETIONS, 16, 1, |_| {
            vec![
                completion("x", &"[".repeat(15 * MIB)),
                completion("x", &"{\"a\":".repeat(3 * MIB)),
                completion("x", &nested("[", "]", 126)),
                b"[".repeat(16 * MIB),
            ]
        }),
        post("a million keys", COMPLETIONS, 8, 1, |_| {
            vec![completion("x", &keys(1_000_000)), completion("x", &same_keys(2_000_000))]
        }),
        post("chat_template_kwargs of millions", CHATS, 8, 1, |_| {
            vec![
                chat("chat_template_kwargs", &keys(1_000_000)),
                chat("chat_template_kwargs", &format!("{{\"a\":{}}}", list("[]", 4 * MIB))),
            ]
        }),
        post("metadata of millions", CHATS, 8, 1, |_| {
            vec![chat("metadata", &keys(1_000_000)), chat("metadata", &list("{}", 4 * MIB))]
        })
        .keyed(),
        post("documents of millions", CHATS, 8, 1, |_| {
            vec![chat("documents", &list("{}", 4 * MIB))]
        }),
        post("half a million messages", CHATS, 4, 1, |_| vec![messages(540_000)]),
        post("20,000 messages", CHATS, 8, 2, |_| vec![messages(20_000)]),
        post("20,000 parts of a message", CHATS, 8, 2, |_| vec![parts(20_000)]),
        post("half a million parts of a message", CHATS, 4, 1, |_| vec![parts(540_000)]),
        post("a message with a million fields", CHATS, 4, 1, |_| {
            let message = keys(1_000_000);
            let message = format!("{{\"role\": \"user\", \"content\": \"x\", {}", &message[1..]);
            vec![format!("{{\"max_tokens\": 2, \"messages\": [{message}]}}").into_bytes()]
        }),
        post("a message of 15 MiB", CHATS, 4, 1, |_| {
            let content = text(15 * MIB);
            let message = format!("{{\"role\": \"user\", \"content\": {content}}}");
            vec![format!("{{\"max_tokens\": 2, \"messages\": [{message}]}}").into_bytes()]
        }),
        post("millions of stop_token_ids and stops", COMPLETIONS, 4, 1, |_| {
            vec![
                completion("stop_token_ids", &list("7", 7 * MIB)),
                completion("stop", &list("\"\"", 5 * MIB)),
                completion("guided_choice", &list("\"\"", 5 * MIB)),
            ]
        }),
    ]
}

/// Guides that are hard to compile or to follow.
fn guides() -> Vec<Attack> {
    vec![
        post("schemas that ask for much", COMPLETIONS, 8, 2, schemas),
        post("schemas that ask for much, from clients that vanish", COMPLETIONS, 16, 1, schemas).then(Then::Vanish),
        post("expressions that ask for much", COMPLETIONS, 10, 1, expressions),
        post("expressions that ask for much, from clients that vanish", COMPLETIONS, 10, 1, expressions)
            .then(Then::Vanish)
            .keyed(),
        post("grammars that ask for much", COMPLETIONS, 8, 1, grammars),
        post("n=128, guides that are hard to follow", COMPLETIONS, 5, 1, hard_to_follow),
        post("choices of megabytes", COMPLETIONS, 5, 1, choices),
        post("choices of megabytes, from clients that vanish", COMPLETIONS, 5, 1, choices).then(Then::Vanish),
        post("500 guides of which none is like another", COMPLETIONS, 8, 60, |salt| {
            let schema = |at: usize| json!({"type": "object", "properties": {format!("p{salt}x{at}"): {"type": "string", "pattern": "^[a-z]{1,20}$"}}});
            (0..500).map(|at| bodies::schema(&schema(at))).collect()
        })
        .short(),
    ]
}

/// `/tokenize` and `/detokenize`.
fn tokens() -> Vec<Attack> {
    vec![
        post("/tokenize of 4 MiB without a space", TOKENIZE, 4, 1, |_| {
            vec![tokenise(&"x".repeat(4 * MIB), "")]
        }),
        post("/tokenize of 4 MiB of words", TOKENIZE, 4, 1, |_| {
            vec![tokenise(&"Once upon a time ".repeat(250_000), ", \"return_token_strs\": true")]
        }),
        post("/tokenize of 16 MiB", TOKENIZE, 4, 1, |_| {
            vec![
                tokenise(&"ab cd ".repeat(2_700_000), ""),
                tokenise(&"x".repeat(15 * MIB), ", \"return_token_strs\": true"),
            ]
        }),
        post("/tokenize of what is not English", TOKENIZE, 4, 1, |_| {
            let all: String =
                (0x80..0x2_ffff).filter_map(char::from_u32).cycle().take(1_500_000).collect();
            vec![
                tokenise(&all, ", \"return_token_strs\": true"),
                tokenise(&"é́".repeat(900_000), ""),
            ]
        })
        .keyed(),
        post("/tokenize of conversations", TOKENIZE, 4, 1, |_| {
            vec![messages(300_000), parts(300_000)]
        }),
        post("/detokenize of millions", DETOKENIZE, 4, 1, |_| {
            vec![
                with("\"x\": 1", "tokens", &list("7", 2 * MIB)),
                with("\"x\": 1", "tokens", &list("300", 4 * MIB)),
            ]
        }),
        post("prompts of 4 MiB of text", COMPLETIONS, 8, 1, |_| {
            vec![
                with("\"n\": 128", "prompt", &text(4 * MIB)),
                with("\"n\": 1", "prompt", &each(128, |at| text(30_000 + at))),
            ]
        }),
        post("prompts that could just fit", COMPLETIONS, 8, 10, |_| {
            vec![
                with("\"n\": 128", "prompt", &text(20_000)),
                with("\"n\": 1, \"truncate_prompt_tokens\": 10", "prompt", &text(4 * MIB)),
            ]
        }),
    ]
}

/// Errors that could repeat what was sent.
fn errors() -> Vec<Attack> {
    vec![
        post("errors about a megabyte", COMPLETIONS, 4, 16, |_| echoes()).short(),
        post("errors about a megabyte of a chat", CHATS, 4, 16, |_| echoes()).keyed(),
        post("errors about a megabyte to /tokenize", TOKENIZE, 4, 16, |_| echoes()),
    ]
}

/// Clients that are slow, broken or gone.
fn sockets() -> Vec<Attack> {
    vec![
        raw("slow heads", raw::slow_heads),
        raw("slow bodies", raw::slow_bodies).keyed(),
        raw("bodies that stop a byte before their end", raw::stuck_bodies),
        raw("thousands of idle connections", raw::idle),
        raw("half a chunk", raw::half_chunks),
        raw("chunks of one byte", raw::chunks_of_one),
        raw("pipelines", raw::pipelines),
        raw("streams left behind an unread byte", raw::vanish_behind_a_byte),
        raw("answers left behind an unread byte", raw::vanish_before_the_response).short(),
        raw("streams that are read byte by byte", raw::slow_readers),
        raw("streams that are reset", raw::resets).keyed(),
        raw("expectations that are not met", raw::expectations),
        raw("lengths that lie", raw::lies).short(),
        raw("bodies that are too large", raw::too_large),
        raw("what is no request", raw::rubbish).short(),
        raw("pages by the hundred", raw::scrapes).keyed(),
    ]
}
