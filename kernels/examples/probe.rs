//! Say whether CUDA can be used here: `cargo run -p kernels --example probe`.

fn main() {
    match kernels::probe() {
        Ok(cuda) => println!("{cuda}"),
        Err(why) => println!("no CUDA: {why}"),
    }
}
