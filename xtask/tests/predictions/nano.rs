//! The fast track answers the questions of the first chapter.

use nano::attention::attend;
use nano::generate::{generate, generate_without_cache};
use nano::ops::{argmax, softmax};
use nano::toy::Toy;
use nano::{BlockPool, Heads, KvMemory, Layer, Matrix, Model, Request, Scheduler};
use serde_json::Value;

use super::{agree, agree_closely, number, numbers, questions, reals, said};

#[test]
fn words_read_the_row_of_their_token() {
    agree(("nano", "embedding-row"), 200, number, |facts| {
        let words = facts["vocabulary"].as_array().unwrap();
        let words: Vec<String> = words.iter().map(|w| w.as_str().unwrap().into()).collect();
        // A model without layers, whose row of token `t` has its only 1 at `t`: so has the logit behind it.
        let n = words.len();
        let model = Model {
            embedding: identity(n),
            layers: Vec::new(),
            norm: vec![1.0; n],
            lm_head: identity(n),
            heads: Heads { query: 1, kv: 1, dim: 2 },
            eps: 0.0,
            rope_theta: 100.0,
        };
        let toy = Toy { words, model };
        let tokens = toy.encode(facts["prompt"].as_str().unwrap()).unwrap();
        let token = tokens[number(&facts["position"])];
        let logits = toy.model.forward(token, &[0], &mut toy.model.kv_memory(1));
        argmax(&logits)
    });
}

fn identity(n: usize) -> Matrix {
    let mut matrix = Matrix::zeros(n, n);
    (0..n).for_each(|i| matrix.row_mut(i)[i] = 1.0);
    matrix
}

fn heads(facts: &Value, dim: usize) -> Heads {
    let (query, kv) = (number(&facts["query_heads"]), number(&facts["kv_heads"]));
    Heads { query, kv, dim }
}

#[test]
fn queries_keys_and_values_are_as_long_as_said() {
    agree(("nano", "qkv-numbers"), 200, numbers, |facts| {
        let heads = heads(facts, number(&facts["head_dim"]));
        let hidden = number(&facts["hidden"]);
        let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let model = one_layer(heads, hidden, Matrix::zeros(kv, hidden), Matrix::zeros(hidden, q));
        let mut memory = model.kv_memory(1);
        // It runs with these shapes, and with no others.
        let out = model.attention(0, &vec![1.0; hidden], &[0], &mut memory);
        assert_eq!(out.len(), hidden);
        let (keys, values) = memory.load(0, &[0]);
        vec![model.layers[0].q.times(&vec![1.0; hidden]).len(), keys[0].len(), values[0].len()]
    });
}

/// A model with one layer whose scores are all 0.
fn one_layer(heads: Heads, hidden: usize, v: Matrix, o: Matrix) -> Model {
    let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    let none = || Matrix::zeros(0, hidden);
    let layer = Layer {
        attn_norm: vec![1.0; hidden],
        q: Matrix::zeros(q, hidden),
        k: Matrix::zeros(kv, hidden),
        v,
        o,
        mlp_norm: vec![1.0; hidden],
        gate: none(),
        up: none(),
        down: Matrix::zeros(hidden, 0),
    };
    Model {
        embedding: none(),
        layers: vec![layer],
        norm: vec![1.0; hidden],
        lm_head: none(),
        heads,
        eps: 1e-5,
        rope_theta: 100.0,
    }
}

#[test]
fn a_layer_computes_as_many_scores_as_said() {
    agree(("nano", "attended-tokens"), 60, number, |facts| {
        let tokens = number(&facts["tokens"]);
        // The value of token `t` has its only number at `t`, in each KV head, and all scores are equal: so each score
        // shows as one number of the output.
        let dim = tokens.next_multiple_of(2);
        let heads = heads(facts, dim);
        let mut v = Matrix::zeros(heads.kv * dim, dim);
        (0..heads.kv * dim).for_each(|row| v.row_mut(row)[row % dim] = 1.0);
        let model = one_layer(heads, dim, v, identity(heads.query * dim));
        let mut memory = model.kv_memory(tokens);
        let slots: Vec<usize> = (0..tokens).collect();
        let scores = |t: usize| {
            let x = identity(dim).row(t).to_vec();
            let out = model.attention(0, &x, &slots[..=t], &mut memory);
            out.iter().filter(|x| **x > 0.0).count()
        };
        (0..tokens).map(scores).sum()
    });
}

#[test]
fn shares_are_those_of_softmax() {
    agree_closely(("nano", "softmax-share"), |facts| {
        let mut scores: Vec<f32> = reals(&facts["parts"]).iter().map(|part| part.ln()).collect();
        softmax(&mut scores);
        scores[number(&facts["i"])]
    });
}

#[test]
fn heads_mix_values_by_their_weights() {
    let ints = |v: &Value| -> Vec<i64> {
        v.as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
    };
    agree(("nano", "weighted-values"), 200, ints, |facts| {
        // Keys whose scores are the logarithms of the weights.
        let root = 2f32.sqrt();
        let keys: Vec<Vec<f32>> =
            reals(&facts["parts"]).iter().map(|part| vec![root * part.ln(), 3.0]).collect();
        let values: Vec<Vec<f32>> = facts["values"].as_array().unwrap().iter().map(reals).collect();
        let keys: Vec<&[f32]> = keys.iter().map(Vec::as_slice).collect();
        let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
        let out = attend(&[1.0, 0.0], &keys, &values, Heads { query: 1, kv: 1, dim: 2 });
        let whole = |x: &f32| {
            assert!((x - x.round()).abs() < 1e-3, "{x}");
            x.round() as i64
        };
        out.iter().map(whole).collect()
    });
}

#[test]
fn the_largest_logit_is_that_of_argmax() {
    agree(("nano", "largest-logit"), 200, number, |facts| argmax(&reals(&facts["logits"])));
}

#[test]
fn generation_takes_the_passes_said() {
    let toy = Toy::load();
    agree(("nano", "forward-passes"), 100, numbers, |facts| {
        let prompt = vec![0; number(&facts["prompt"])];
        let output = number(&facts["output"]);
        let without = generate_without_cache(&toy.model, &prompt, output, &[]);
        let with = generate(&toy.model, &prompt, output, &[]);
        assert_eq!((with.tokens.len(), without.tokens.len()), (output, output));
        vec![without.passes, with.passes]
    });
}

#[test]
fn caches_take_the_bytes_said() {
    agree(("nano", "cache-bytes"), 200, number, |facts| {
        let heads = heads(facts, number(&facts["head_dim"]));
        let slots = number(&facts["tokens"]);
        let kv = KvMemory::new(number(&facts["layers"]), slots, heads.kv * heads.dim);
        // The fast track has f32 only.
        kv.slots() * kv.bytes_per_slot() / size_of::<f32>() * number(&facts["element"])
    });
}

/// A request of so many tokens in all, of which some are computed.
fn request(id: usize, prompt: usize, output: usize, computed: usize) -> Request {
    let mut request = Request::new(id, vec![0; prompt], 100);
    request.tokens.resize(prompt + output, 1);
    request.computed = computed;
    request
}

#[test]
fn two_requests_share_a_step_as_said() {
    agree(("nano", "step-tokens"), 200, numbers, |facts| {
        let mut scheduler = Scheduler::new(BlockPool::new(100, 4), number(&facts["budget"]));
        for (id, name) in ["a", "b"].into_iter().enumerate() {
            let numbers = numbers(&facts[name]);
            let mut request = request(id, numbers[0], numbers[1], numbers[2]);
            if id == 1 && facts["waits"] == true {
                scheduler.waiting.push_back(request);
            } else {
                assert!(request.table.reserve(request.computed, &mut scheduler.pool));
                scheduler.running.push(request);
            }
        }
        let mut tokens = vec![0, 0];
        for row in scheduler.plan() {
            tokens[scheduler.running[row.request].id] = row.tokens;
        }
        tokens
    });
}

#[test]
fn the_requests_said_are_preempted() {
    agree(("nano", "preempted"), 200, numbers, |facts| {
        let requests: Vec<Vec<usize>> =
            facts["requests"].as_array().unwrap().iter().map(numbers).collect();
        let (size, free) = (number(&facts["block_size"]), number(&facts["free"]));
        let held: usize = requests.iter().map(|request| request[1].div_ceil(size)).sum();
        let mut scheduler = Scheduler::new(BlockPool::new(held + free, size), 100);
        for numbers in requests {
            let mut request = request(numbers[0], numbers[1], 1, numbers[1]);
            assert!(request.table.reserve(request.computed, &mut scheduler.pool));
            scheduler.running.push(request);
        }
        assert_eq!(scheduler.pool.num_free(), free);
        scheduler.plan();
        // Each goes to the head of the queue.
        scheduler.waiting.iter().rev().map(|request| request.id).collect()
    });
}

/// The right answers to the quiz of a seed, as they are typed.
fn right_answers(seed: usize) -> Vec<String> {
    let (_, out, _) = said(&["nano", "--list"]);
    let answer = |line: &str| {
        let kind = line.split_whitespace().nth(1).unwrap();
        match &questions("nano", kind, seed + 1)[seed]["answer"] {
            Value::Array(list) => list.iter().map(Value::to_string).collect::<Vec<_>>().join(" "),
            number => number.to_string(),
        }
    };
    out.lines().map(answer).collect()
}

#[test]
fn a_quiz_without_a_terminal_is_printed_and_says_how_to_answer() {
    let (status, out, _) = said(&["nano", "--quiz", "--seed", "3"]);
    assert_eq!(status, Some(0));
    let how = "\n  cargo x predict nano --quiz --seed 3 --answers \"a; b; c; ...\"\n";
    assert!(out.contains(how), "{out}");
    let (status, out, _) = said(&["nano", "--quiz"]);
    assert_eq!(status, Some(0));
    let seed = out.split("--seed ").nth(1).unwrap().split(')').next().unwrap();
    assert_eq!(said(&["nano", "--quiz", "--seed", seed]).1, out, "without a seed it is said");
}

#[test]
fn a_quiz_is_graded_by_its_exit_status() {
    let mut answers = right_answers(3);
    let quiz = |answers: &[String]| {
        said(&["nano", "--quiz", "--seed", "3", "--answers", &answers.join("; ")])
    };
    let (status, out, err) = quiz(&answers);
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(out.ends_with("\n10 of 10 right: passed (8 are needed).\n"), "{out}");
    (answers[8], answers[9]) = (String::new(), "99".into());
    assert_eq!(quiz(&answers).0, Some(0));
    answers[0] = "99".into();
    let (status, out, _) = quiz(&answers);
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("\n7 of 10 right: not passed (8 are needed).\n"), "{out}");
    let (status, out, err) = quiz(&answers[..9]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    assert!(err.contains("10 answers with `;` between them are asked for, and this is 9"), "{err}");
    answers[3] = "ln".into();
    let (status, _, err) = quiz(&answers);
    assert_eq!(status, Some(2));
    assert!(err.contains("cannot read answer 4 (softmax-share): "), "{err}");
}

#[test]
fn a_quiz_has_all_kinds_and_its_answers_a_seed() {
    for (args, wanted) in [
        (vec!["nano", "--quiz", "--kind", "preempted"], "cannot be used with"),
        (vec!["nano", "--quiz", "--list"], "cannot be used with"),
        (vec!["nano", "--quiz", "--seed", "1", "--json", "2"], "cannot be used with"),
        (vec!["nano", "--quiz", "--seed", "1", "--answer", "2"], "cannot be used with"),
        (vec!["nano", "--quiz", "--answers", "1; 2"], "--seed"),
        (vec!["nano", "--seed", "1", "--answers", "1; 2"], "--quiz"),
        (vec!["--quiz"], "name a layer: cargo x predict nano"),
    ] {
        let (status, _, err) = said(&args);
        assert_eq!(status, Some(2), "{args:?}: {err}");
        assert!(err.contains(wanted), "{args:?}: {err}");
    }
}
