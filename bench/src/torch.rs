//! PyTorch's own store, asked to do the same in a process of its own.

use rallypoint_testkit::run_python;

use crate::measure::Samples;

const STORE: &str = include_str!("../torch_store.py");

/// PyTorch's version, and the rates of its `EtcdStore.get` with `keys` keys in the store.
pub(crate) fn store_get(endpoint: &str, keys: usize, rounds: u32) -> (String, Samples) {
    let output = run_python(STORE, &[endpoint, &keys.to_string(), &rounds.to_string()]);
    let answer: serde_json::Value = serde_json::from_str(output.trim()).expect("torch_store.py prints JSON");
    let mut samples = Samples::default();
    for rate in answer["get"].as_array().expect("a rate for each round") {
        samples.push(rate.as_f64().expect("a rate is a number"));
    }
    (answer["version"].as_str().unwrap_or("unknown").to_owned(), samples)
}
