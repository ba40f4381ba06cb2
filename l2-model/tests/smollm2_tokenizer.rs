//! SmolLM2's own vocabulary against the reference: ids of hostile strings, decoding, chat renderings.
//!
//! The file has 98 MB and is not in the repository: `STRATA_SMOLLM2` names it, and `cargo x test --full` sets that.

mod tokenizer_support;

use std::env;
use std::path::Path;
use std::time::Instant;

use l2_model::chat_template::{ChatTemplate, Message};
use l2_model::checkpoint::GgufFile;
use l2_model::tokenizer::{GgufVocab, Tokenizer};
use serde::Deserialize;
use tokenizer_support::{Golden, json};

#[derive(Deserialize)]
struct Chat {
    chat_template: String,
    cases: Vec<Rendering>,
}

#[derive(Deserialize)]
struct Rendering {
    name: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    rendered: String,
}

#[test]
fn smollm2_tokenizes_decodes_and_renders_as_the_reference() {
    let Some(path) = env::var_os("STRATA_SMOLLM2") else {
        println!("needs the model: STRATA_SMOLLM2=FILE.gguf, or `cargo x test --full`");
        return;
    };
    let start = Instant::now();
    let file = GgufFile::open(Path::new(&path)).unwrap();
    let tokenizer = Tokenizer::from_gguf(GgufVocab::from_metadata(&file).unwrap()).unwrap();
    println!("tokenizer of {} ids ready in {:?}", tokenizer.vocab_size(), start.elapsed());

    let golden: Golden = json("smollm2/tokenize.json");
    assert!(golden.cases.len() >= 60);
    for case in &golden.cases {
        assert_eq!(tokenizer.encode(&case.text, false).unwrap(), case.ids, "{:?}", case.text);
        assert_eq!(
            tokenizer.encode(&case.text, true).unwrap(),
            case.ids,
            "it adds no BOS: {:?}",
            case.text
        );
    }
    for case in golden.cases.iter().chain(&golden.decode_only) {
        for (skip, expected) in [(false, &case.decoded), (true, &case.decoded_no_special)] {
            assert_eq!(&tokenizer.decode(&case.ids, skip).unwrap(), expected, "{:?}", case.ids);
            let mut stream = tokenizer.detokenizer(skip);
            let mut text = String::new();
            for &id in &case.ids {
                text.push_str(stream.push(id).unwrap());
            }
            assert_eq!(&(text + &stream.finish()), expected, "streamed {:?}", case.ids);
        }
    }
    assert_eq!(tokenizer.encode("a  5", false).unwrap(), [81, 256, 37]);

    let has_token = |byte: u8| {
        (0..tokenizer.vocab_size() as u32).any(|id| tokenizer.token_bytes(id).unwrap() == [byte])
    };
    let missing: Vec<u8> = (0..=255).filter(|&byte| !has_token(byte)).collect();
    assert_eq!(missing, golden.bytes_without_token);

    let chat: Chat = json("smollm2/chat.json");
    assert_eq!(tokenizer.chat_template(), Some(chat.chat_template.as_str()));
    let token = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
    let (bos, eos) = (token(tokenizer.bos()), token(tokenizer.eos()));
    let template = ChatTemplate::new(&chat.chat_template, bos.as_deref(), eos.as_deref()).unwrap();
    for case in &chat.cases {
        let rendered = template
            .render(&case.messages, case.add_generation_prompt, &Default::default())
            .unwrap();
        assert_eq!(rendered, case.rendered, "{}", case.name);
    }
}
