//! Draft heads on a device, against the goldens of PyTorch.

use l1_tensor::safetensors::SafetensorsFile;
use l1_tensor::{Precision, Runtime, Tensor};
use l2_model::draft_head::{DraftHead, EagleHead, EagleWorkspace, Hidden, MedusaWorkspace};
use l2_model::{Batch, ContiguousState, WorkspaceSpec};

use crate::judge;
use crate::models::{device, fixture, load};

fn golden(dir: &str) -> SafetensorsFile {
    SafetensorsFile::open(fixture(dir).join("golden.safetensors")).unwrap()
}

/// The chunk of a golden, whose rows are the target's, then drafts one by one.
fn drafts(rt: &Runtime, head: &EagleHead, rows: &[Tensor], tokens: &[u32]) -> Vec<f32> {
    let spec = WorkspaceSpec { max_tokens: 24, max_rows: 24, max_context: 32 };
    let mut ws = EagleWorkspace::new(rt, head, spec).unwrap();
    let dtype = rt.activation_dtype();
    let mut state = ContiguousState::new_on(rt.device(), head.config(), 1, 32, dtype).unwrap();
    let hidden: Vec<_> = rows.iter().map(Tensor::view).collect();
    let mut logits = Vec::new();
    let mut from = 0;
    // The row before a draft is the only logit row of its step.
    for n in [23].into_iter().chain([1; 6]) {
        let parts: Vec<_> = hidden.iter().map(|t| t.narrow(0, from.min(23), n).unwrap()).collect();
        let hidden = if from < 24 { Hidden::Target(&parts) } else { Hidden::Previous };
        let batch = Batch {
            tokens: &tokens[from..from + n],
            positions: &(from as i32..(from + n) as i32).collect::<Vec<_>>(),
            cu_seqlens_q: &[0, n as i32],
            state_slots: &[0],
            logit_rows: &(0..n as u32).collect::<Vec<_>>(),
            ..Batch::default()
        };
        let got = head.forward(&batch, hidden, &mut state, &mut ws).unwrap();
        logits.extend(got.to_vec_f32().unwrap());
        from += n;
    }
    logits
}

#[test]
fn draft_heads_on_a_device_have_torchs_logits() {
    let rt = device(Precision::F32, false);
    for (name, target_name) in
        [("eagle", "tiny-qwen2"), ("eagle3", "tiny-llama-untied"), ("medusa", "tiny-llama-linear")]
    {
        let target = load(target_name, &rt);
        let dir = format!("draft-heads/{name}");
        let head = DraftHead::open(&rt, &fixture(&dir), &target).unwrap();
        let (golden, of_target) = (golden(&dir), golden(target_name));
        let rows: Vec<Tensor> = head
            .taps()
            .iter()
            .map(|tap| of_target.tensor(&tap.to_string()).unwrap().to_device(rt.device()).unwrap())
            .collect();
        let got = match &head {
            DraftHead::Eagle(head) => {
                let tokens = golden.tensor("tokens").unwrap();
                let tokens = tokens.view().as_slice::<i64>("golden").unwrap().to_vec();
                let tokens: Vec<u32> = tokens.into_iter().map(|id| id as u32).collect();
                drafts(&rt, head, &rows, &tokens)
            }
            DraftHead::Medusa(heads) => {
                let mut ws = MedusaWorkspace::new(&rt, heads, 24).unwrap();
                heads.forward(rows[0].view(), &mut ws).unwrap();
                let of = |i| ws.logits(i).unwrap().to_vec_f32().unwrap();
                (0..heads.heads()).flat_map(of).collect()
            }
        };
        let expected = golden.tensor("logits").unwrap();
        let (dims, values) = (expected.dims().to_vec(), expected.to_vec_f32().unwrap());
        let what = format!("logits of {name} on a device in f32");
        judge::close(&what, &dims, &got, &values, 2e-3);
    }
}
