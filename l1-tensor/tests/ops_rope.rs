//! Rotary embedding against its reference, transformers and itself.

mod support;

use l1_tensor::ops::{RopeScaling, RopeTable, rope, rope_reference};
use l1_tensor::{DType, Device, Error, Tensor};
use proptest::prelude::*;
use serde_json::Value;
use support::*;

/// A case's `rope_parameters`, as a config.json of transformers v5 nests them.
fn scaling_of(p: &Value) -> RopeScaling {
    let number = |key: &str| p.get(key).and_then(Value::as_f64);
    let need = |key: &str| number(key).unwrap_or_else(|| panic!("{key} in {p}"));
    let context = || need("original_max_position_embeddings") as usize;
    match p["rope_type"].as_str().expect("a rope type") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor") },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor"),
            low_freq_factor: need("low_freq_factor"),
            high_freq_factor: need("high_freq_factor"),
            original_max_position: context(),
        },
        "yarn" => RopeScaling::Yarn {
            factor: need("factor"),
            beta_fast: number("beta_fast").unwrap_or(32.0),
            beta_slow: number("beta_slow").unwrap_or(1.0),
            original_max_position: context(),
            attention_factor: number("attention_factor"),
            mscale: number("mscale"),
            mscale_all_dim: number("mscale_all_dim"),
            truncate: p.get("truncate").and_then(Value::as_bool).unwrap_or(true),
        },
        other => panic!("rope type {other}"),
    }
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// Distance in units of the last place.
fn ulps(a: f32, b: f32) -> u32 {
    a.to_bits().abs_diff(b.to_bits())
}

#[test]
fn frequencies_and_angles_are_those_of_transformers_for_every_scaling() {
    let text = std::fs::read_to_string(fixture("rope.json")).expect("the fixture");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let rt = &every_isa()[0];
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() >= 10);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let p = &case["rope_parameters"];
        let rotary_dim = case["rotary_dim"].as_u64().unwrap() as usize;
        let theta = p["rope_theta"].as_f64().unwrap();
        let table = RopeTable::new(rotary_dim, theta, &scaling_of(p)).unwrap();
        let want = floats(&case["inv_freq"]);
        assert_eq!(table.inv_freq().len(), want.len(), "{name}");
        let what = format!("rope frequencies of {name}, rotary_dim {rotary_dim}, theta {theta}");
        // Two units in the last place.
        assert_close(what, &[want.len()], table.inv_freq(), &want, within(2.4e-7, 0.0));
        let scaling = case["attention_scaling"].as_f64().unwrap() as f32;
        let got = table.attention_scaling();
        assert!(ulps(got, scaling) <= 1, "{name}: attention scaling {got} instead of {scaling}");

        let positions: Vec<i32> = floats(&case["positions"]).iter().map(|p| *p as i32).collect();
        let shape = [positions.len(), want.len()];
        let mut cos = Tensor::zeros(&shape, DType::F32, Device::Cpu).unwrap();
        let mut sin = Tensor::zeros(&shape, DType::F32, Device::Cpu).unwrap();
        table.angles(rt, &positions, cos.view_mut(), sin.view_mut()).unwrap();
        for (which, t) in [("cos", cos), ("sin", sin)] {
            let got = t.to_vec_f32().unwrap();
            for (t, row) in case[which].as_array().unwrap().iter().enumerate() {
                for (i, w) in floats(row).iter().enumerate() {
                    // One ulp of a frequency, times the position, is all the angle may be off.
                    let f = want[i];
                    let ulp = f32::from_bits(f.to_bits() + 1) - f;
                    let off = ulps(table.inv_freq()[i], f) as f32 * ulp * positions[t] as f32;
                    let g = got[t * want.len() + i];
                    let bound = (2.0 * off + 2e-7) * scaling.max(1.0);
                    let what = format!("{which} of {name}, position {}, pair {i}", positions[t]);
                    assert_close(what, &[1], &[g], &[*w], within(0.0, bound));
                }
            }
        }
    }
}

#[test]
fn turning_agrees_with_torch() {
    let goldens = Goldens::open();
    for case in goldens.cases("rope") {
        let x = goldens.tensor(&case, "x");
        let positions = goldens.tensor(&case, "positions");
        let positions = positions.view().as_slice::<i32>("test").unwrap();
        let p = goldens.parameters(&case);
        let rotary_dim = p["rotary_dim"].as_u64().unwrap() as usize;
        let theta = p["theta"].as_f64().unwrap();
        let table = RopeTable::new(rotary_dim, theta, &RopeScaling::None).unwrap();
        let half = rotary_dim / 2;
        let mut cos = Tensor::zeros(&[positions.len(), half], DType::F32, Device::Cpu).unwrap();
        let mut sin = Tensor::zeros(&[positions.len(), half], DType::F32, Device::Cpu).unwrap();
        table.angles(&every_isa()[0], positions, cos.view_mut(), sin.view_mut()).unwrap();
        let want = goldens.tensor(&case, "out").to_vec_f32().unwrap();
        let what = |on: &str| format!("rope, {on}, {case} of torch, x {:?}", x.dims());
        // 400 times one ulp of a frequency near 1.
        let allowed = within(1e-6, 5e-5);

        let mut got = x.to_vec_f32().unwrap();
        let (c, s) = (cos.to_vec_f32().unwrap(), sin.to_vec_f32().unwrap());
        let (heads, d) = (x.dims()[1], x.dims()[2]);
        for (i, head) in got.chunks_mut(d).enumerate() {
            let t = i / heads * half;
            rope_reference(head, &c[t..][..half], &s[t..][..half]);
        }
        assert_close(what("the reference"), x.dims(), &got, &want, allowed);
        for rt in every_isa() {
            let mut x = goldens.tensor(&case, "x");
            rope(&rt, x.view_mut(), cos.view(), sin.view()).unwrap();
            let on = format!("on {}", rt.isa());
            assert_close(what(&on), x.dims(), &x.to_vec_f32().unwrap(), &want, allowed);
        }
    }
}

#[test]
fn a_quarter_turn_moves_each_element_to_its_partner() {
    // cos 0, sin 1: what was at i comes to i + half, what was at i + half to i, with a minus.
    for (half, want) in
        [(3, [-4.0, -5.0, -6.0, 1.0, 2.0, 3.0]), (1, [-2.0, 1.0, 3.0, 4.0, 5.0, 6.0])]
    {
        let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let (cos, sin) = (vec![0.0f32; half], vec![1.0f32; half]);
        let mut got = x;
        rope_reference(&mut got, &cos, &sin);
        let what =
            |on: &str| format!("rope, {on}, 1 to 6, the first {} turned a quarter", 2 * half);
        assert_close(what("the reference"), &[6], &got, &want, within(0.0, 1e-9));
        for rt in every_isa() {
            let mut t = Tensor::from_slice(&x, &[1, 1, 6]).unwrap();
            let (c, s) =
                (Tensor::from_slice(&cos, &[1, half]), Tensor::from_slice(&sin, &[1, half]));
            rope(&rt, t.view_mut(), c.unwrap().view(), s.unwrap().view()).unwrap();
            let what = what(&format!("on {}", rt.isa()));
            assert_close(what, &[6], &t.to_vec_f32().unwrap(), &want, within(0.0, 1e-9));
        }
    }
}

proptest! {
    #![proptest_config(random_cases(64))]

    #[test]
    fn turning_has_the_bits_of_its_reference_on_every_instruction_set(
        tokens in 0..5usize,
        heads in 0..4usize,
        d in prop_oneof![Just(1usize), 2..40usize, Just(64), Just(128), Just(257)],
        part in 0.0..=1.0f32,
        gap in 0..9usize,
        seed: u64,
    ) {
        let half = (d as f32 * part / 2.0) as usize;
        let width = heads * d + gap;
        let x = noise(tokens * width, seed);
        let (c, s) = (noise(tokens * half, seed ^ 1), noise(tokens * half, seed ^ 2));
        let ct = Tensor::from_slice(&c, &[tokens, half]).unwrap();
        let st = Tensor::from_slice(&s, &[tokens, half]).unwrap();
        let mut want = x.clone();
        for t in 0..tokens {
            for h in 0..heads {
                let head = &mut want[t * width + gap + h * d..][..d];
                rope_reference(head, &c[t * half..][..half], &s[t * half..][..half]);
            }
        }
        for rt in every_isa() {
            let mut packed = Tensor::from_slice(&x, &[tokens, width]).unwrap();
            let view = packed.view_mut().narrow(1, gap, heads * d).unwrap();
            let view = view.reshape(&[tokens, heads, d]).unwrap();
            rope(&rt, view, ct.view(), st.view()).unwrap();
            let what = format!("rope on {}, x [{tokens}, {heads}, {d}] in rows of {width}", rt.isa());
            let got = packed.to_vec_f32().unwrap();
            let off = differences(what, &[tokens, width], &got, &want, SAME_BITS);
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
        }
    }
}

#[test]
fn a_token_is_turned_the_same_alone_and_in_a_batch_on_any_number_of_threads() {
    let (tokens, heads, d) = (97, 12, 64);
    let x = noise(tokens * heads * d, 1);
    let table = RopeTable::new(d, 1e5, &RopeScaling::None).unwrap();
    let positions: Vec<i32> = (0..tokens as i32).map(|t| t * 1300).collect();
    for isa in l1_tensor::cpu::Isa::available() {
        let turn = |threads: usize, from: usize, n: usize| {
            let rt = runtime(isa, threads);
            let mut cos = Tensor::zeros(&[n, d / 2], DType::F32, Device::Cpu).unwrap();
            let mut sin = Tensor::zeros(&[n, d / 2], DType::F32, Device::Cpu).unwrap();
            let positions = &positions[from..][..n];
            table.angles(&rt, positions, cos.view_mut(), sin.view_mut()).unwrap();
            let x = &x[from * heads * d..][..n * heads * d];
            let mut x = Tensor::from_slice(x, &[n, heads, d]).unwrap();
            rope(&rt, x.view_mut(), cos.view(), sin.view()).unwrap();
            bits(&x)
        };
        let alone: Vec<u32> = (0..tokens).flat_map(|t| turn(1, t, 1)).collect();
        for threads in [1, 2, 3] {
            assert!(turn(threads, 0, tokens) == alone, "{isa}, {threads} threads");
        }
    }
}

#[test]
fn scores_depend_on_the_distance_alone() {
    // What rotary embedding is for: q at position m and k at position n see only m - n.
    let d = 32;
    let rt = &every_isa()[0];
    let table = RopeTable::new(d, 1e4, &RopeScaling::None).unwrap();
    let (q, k) = (noise(d, 8), noise(d, 9));
    let score = |m: i32, n: i32| {
        let mut cos = Tensor::zeros(&[2, d / 2], DType::F32, Device::Cpu).unwrap();
        let mut sin = Tensor::zeros(&[2, d / 2], DType::F32, Device::Cpu).unwrap();
        table.angles(rt, &[m, n], cos.view_mut(), sin.view_mut()).unwrap();
        let both = [q.clone(), k.clone()].concat();
        let mut x = Tensor::from_slice(&both, &[2, 1, d]).unwrap();
        rope(rt, x.view_mut(), cos.view(), sin.view()).unwrap();
        let x = x.to_vec_f32().unwrap();
        x[..d].iter().zip(&x[d..]).map(|(a, b)| a * b).sum::<f32>()
    };
    let near = score(7, 3);
    assert!((score(1007, 1003) - near).abs() < 1e-3);
    assert!((score(9, 3) - near).abs() > 1e-2);
}

#[test]
fn llama3_scaling_as_a_table_of_factors_is_llama3_scaling() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 8192,
    };
    let plain = RopeTable::new(128, 5e5, &RopeScaling::None).unwrap();
    let scaled = RopeTable::new(128, 5e5, &scaling).unwrap();
    let pairs = plain.inv_freq().iter().zip(scaled.inv_freq());
    let factors: Vec<f32> = pairs.map(|(plain, scaled)| plain / scaled).collect();
    assert_eq!((factors[0], factors[63]), (1.0, 8.0));
    let table = RopeTable::new(128, 5e5, &RopeScaling::Factors(factors)).unwrap();
    for (got, want) in table.inv_freq().iter().zip(scaled.inv_freq()) {
        assert!(ulps(*got, *want) <= 1, "{got} instead of {want}");
    }
}

/// YaRN over heads of 8 elements with theta 10,000. Without it, pair `i` has the frequency `10^-i`, and makes
/// `context / (2 pi 10^i)` turns within the context.
fn yarn(factor: f64, beta_slow: f64, context: usize) -> RopeTable {
    let scaling = RopeScaling::Yarn {
        factor,
        beta_fast: 32.0,
        beta_slow,
        original_max_position: context,
        attention_factor: None,
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    };
    RopeTable::new(8, 1e4, &scaling).unwrap()
}

#[test]
fn the_ramp_of_yarn_may_end_behind_the_last_pair() {
    // 131,072 / (2 pi) is 10^4.32, and 10^2.81 after a division by 32. So the ramp begins at pair 2, and ends at 5,
    // though the last pair is 3. With 0.001 turns for the slow end it would end at 8, and is cut off at 7.
    for (beta_slow, stretched) in [(1.0, 1.0 / 3.0), (0.001, 1.0 / 5.0)] {
        let got = yarn(4.0, beta_slow, 131_072);
        let last = 1e-3 * (1.0 - stretched + stretched / 4.0);
        let what = format!("yarn frequencies, factor 4, beta_slow {beta_slow}, context 131,072");
        assert_close(what, &[4], got.inv_freq(), &[1.0, 0.1, 0.01, last], within(1e-6, 0.0));
    }
}

#[test]
fn yarn_sharpens_attention_only_if_the_context_becomes_longer() {
    for (factor, scaling) in [(0.5, 1.0), (1.0, 1.0), (4.0, 0.1 * 4f32.ln() + 1.0)] {
        let got = yarn(factor, 1.0, 4096).attention_scaling();
        assert!(ulps(got, scaling) <= 1, "factor {factor}: {got} instead of {scaling}");
    }
}

#[test]
fn frequencies_that_mean_nothing_are_refused() {
    let none = RopeScaling::None;
    for (dim, theta, scaling) in [
        (0, 1e4, none.clone()),
        (7, 1e4, none.clone()),
        (usize::MAX - 1, 1e4, none.clone()),
        (8, f64::NAN, none.clone()),
        (8, -1.0, none),
        (8, 1e4, RopeScaling::Linear { factor: 0.0 }),
        (8, 1e4, RopeScaling::Factors(vec![1.0; 3])),
        (4, 1e4, RopeScaling::Factors(vec![1.0, f32::NAN])),
        (
            8,
            1e4,
            RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 4.0,
                high_freq_factor: 4.0,
                original_max_position: 8192,
            },
        ),
    ] {
        let e = RopeTable::new(dim, theta, &scaling).unwrap_err();
        assert!(matches!(e, Error::BadParameter { op: "rope", .. }), "{e}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let rt = &every_isa()[0];
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, Device::Cpu).unwrap();
    let mut x = zeros(&[3, 2, 8]);
    let (too_wide, few) = (zeros(&[3, 5]), zeros(&[2, 4]));
    for c in [&too_wide, &few] {
        let e = rope(rt, x.view_mut(), c.view(), c.view()).unwrap_err();
        assert!(matches!(e, Error::ShapeMismatch { op: "rope", .. }), "{e}");
    }
    let table = RopeTable::new(8, 1e4, &RopeScaling::None).unwrap();
    let (mut c, mut s) = (zeros(&[3, 4]), zeros(&[3, 5]));
    let e = table.angles(rt, &[0, 1, 2], c.view_mut(), s.view_mut()).unwrap_err();
    assert!(matches!(e, Error::ShapeMismatch { .. }), "{e}");
}
