//! Which layers of a config slide.

use serde_json::{Map, Value, json};

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "sliding-layers",
    about: "how many layers of a config slide",
    chapter: "l2-model/config.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let family = draw.pick(&["llama", "mistral", "qwen2", "qwen2", "qwen3", "qwen3"]);
    let layers = draw.between(4, 12);
    let window = draw.pick(&[64, 256, 1024, 4096]);
    let from = draw.between(1, layers - 1);
    let used = draw.one_in(2);
    let listed: Option<Vec<bool>> = draw.one_in(3).then(|| {
        let every = draw.between(2, 4);
        (0..layers).map(|i| (i + 1) % every != 0).collect()
    });
    let qwen = family.starts_with("qwen");

    let by_switch = if used { layers - from } else { 0 };
    let by_list = listed.as_ref().map(|list| list.iter().filter(|s| **s).count());
    let slide = match (by_list, family) {
        (Some(n), _) => n,
        (None, "mistral") => layers,
        (None, "llama") => 0,
        (None, _) => by_switch,
    };

    let mut config = Map::new();
    let mut lines = Vec::new();
    let mut set = |key: &str, value: Value| {
        lines.push(format!("\"{key}\": {value}"));
        config.insert(key.into(), value);
    };
    set("model_type", json!(family));
    set("num_hidden_layers", json!(layers));
    set("sliding_window", json!(window));
    if qwen {
        set("use_sliding_window", json!(used));
        set("max_window_layers", json!(from));
    }
    if let Some(list) = &listed {
        let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
        let names: Vec<&str> = list.iter().map(kind).collect();
        config.insert("layer_types".into(), json!(names));
        // Twelve long words would fill the screen.
        let short: String = list.iter().map(|s| if *s { 's' } else { 'f' }).collect();
        lines.push(format!(
            "\"layer_types\": {short}\n(s for \"sliding_attention\", f for \"full_attention\")"
        ));
    }
    let text = format!(
        "From a config.json:\n\n{}\n\nIn how many layers is attention limited to a window?",
        lines.join("\n")
    );
    let explanation = match (by_list, family) {
        (Some(n), _) => {
            format!("`layer_types` is there and says it layer by layer: {n} of {layers} slide.")
        }
        (None, "mistral") => format!(
            "A mistral without `layer_types` slides in all {layers} layers: its `sliding_window`\n\
             needs no switch."
        ),
        (None, "llama") => {
            "The llama family has no window: without `layer_types` the key does not apply.".into()
        }
        (None, _) if used => format!(
            "`use_sliding_window` is true: layers from `max_window_layers` = {from} on slide,\n\
             {from} to {}: {layers} - {from} = {by_switch}.",
            layers - 1
        ),
        (None, _) => {
            "`use_sliding_window` is false: the window is written down and not used.".into()
        }
    };
    let whole = |n: usize| Answer::Whole(n as i64);
    let mut question = Question::new(text, whole(slide), explanation, json!({ "config": config }));
    if by_list.is_some() {
        if qwen {
            question =
                question.mistake(whole(by_switch), "where `layer_types` is there, it decides");
        }
        question = question
            .mistake(whole(layers - slide), "those are the layers with full attention")
            .mistake(whole(layers), "`layer_types` says that some have full attention")
            .mistake(whole(0), "`layer_types` decides, whatever the family");
    } else if qwen {
        question = question
            .mistake(
                whole(from),
                "the first `max_window_layers` layers are those that do not slide",
            )
            .mistake(
                whole(layers - from),
                "`sliding_window` counts only where `use_sliding_window` is true",
            )
            .mistake(whole(slide + 1), "layers from `max_window_layers` on: that one slides, too")
            .mistake(
                whole(layers),
                if used {
                    "not all of them: from `max_window_layers` on"
                } else {
                    "`sliding_window` counts only where `use_sliding_window` is true"
                },
            );
    } else {
        question = question
            .mistake(whole(layers), "a key that is there may not apply: look at the family")
            .mistake(whole(0), "mistral needs no switch beside `sliding_window`");
    }
    question
}
