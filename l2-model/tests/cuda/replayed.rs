//! A step that was recorded, and is replayed for other tokens.

use l1_tensor::cuda::Graph;
use l1_tensor::{Precision, Runtime};
use l2_model::{Decoder, Error, Result};

use crate::judge;
use crate::models::{Bench, Step, device, load};

/// The logits of decode steps of two sequences behind prompts: each step recorded anew and run, or the first one
/// replayed.
fn decoded(rt: &Runtime, decoder: &Decoder, steps: &[[u32; 2]], replayed: bool) -> Vec<Vec<f32>> {
    let mut bench = Bench::new(rt, decoder);
    bench.step(&[(0, &[5, 17, 100]), (2, &[64, 200, 9, 11, 2])]).unwrap();
    let mut graph: Option<Graph> = None;
    let mut all = Vec::new();
    for [a, b] in steps {
        let step = Step::of(&bench.state, &[(0, &[*a]), (2, &[*b])]);
        let (batch, gpu) = (step.batch(), rt.gpu().unwrap());
        let Bench { decoder, state, ws } = &mut bench;
        decoder.stage(&batch, state, ws).unwrap();
        match &mut graph {
            None => decoder.run(&batch, state, ws).unwrap(),
            // SAFETY: workspace, state and weights are those of the recording.
            Some(graph) => unsafe { graph.replay() }.unwrap(),
        }
        if replayed && graph.is_none() {
            let recorded: Result<Graph> = Graph::capture(gpu, || decoder.run(&batch, state, ws));
            graph = Some(judge::works("recording a decode step", recorded));
        }
        let logits = decoder.finish(&batch, state, ws).unwrap();
        all.push(logits.to_vec_f32().unwrap());
    }
    all
}

#[test]
fn a_recorded_step_replayed_for_other_tokens_has_the_bits_of_one_that_was_not() {
    for precision in [Precision::F32, Precision::Bf16] {
        let rt = device(precision, false);
        for name in ["tiny-llama", "tiny-mistral"] {
            let decoder = load(name, &rt);
            let steps = [[7, 8], [300, 1], [2, 2], [19, 250]];
            let eager = decoded(&rt, &decoder, &steps, false);
            let replayed = decoded(&rt, &decoder, &steps, true);
            let dims = [2, decoder.config().vocab];
            for (i, (got, expected)) in replayed.iter().zip(&eager).enumerate() {
                let what = format!("logits of {name} in {precision}, decode step {i}, replayed");
                judge::same_bits(&what, &dims, got, expected);
            }
            assert_ne!(eager[2], eager[3], "steps must differ for this to mean something");
        }
    }
}

/// What an error in the middle of a recording leaves behind: nothing, and the next step runs.
#[test]
fn a_recording_that_fails_leaves_the_device_usable() {
    let rt = device(Precision::F32, false);
    let decoder = load("tiny-llama", &rt);
    let mut bench = Bench::new(&rt, &decoder);
    let expected = Bench::new(&rt, &decoder).step(&[(0, &[5, 17])]).unwrap();
    let step = Step::of(&bench.state, &[(0, &[5, 17])]);
    let Bench { state, ws, .. } = &mut bench;
    decoder.stage(&step.batch(), state, ws).unwrap();
    let failed: Result<Graph> = Graph::capture(rt.gpu().unwrap(), || {
        decoder.run(&step.batch(), state, ws)?;
        Err(Error::EmptyPrompt)
    });
    judge::fails_with!("a recording that fails", failed.map(|_| ()), Error::EmptyPrompt);
    let got = bench.step(&[(0, &[5, 17])]).unwrap();
    judge::same_bits("logits after it", &[2, decoder.config().vocab], &got, &expected);
}
