//! Shows what processes do: `cargo run --release -p rallypoint-stacks --example look PID...`

use std::time::{Duration, Instant};

fn main() {
    let pids: Vec<u32> = std::env::args().skip(1).filter_map(|pid| pid.parse().ok()).collect();
    let began = Instant::now();
    for seen in rallypoint_stacks::look(&pids, Duration::from_secs(2)) {
        println!("{seen}");
    }
    println!("in {:.0} ms", began.elapsed().as_secs_f64() * 1000.0);
}
