//! Prometheus' text format.
//!
//! The library writes OpenMetrics, in which a counter's name in `HELP` and `TYPE` lacks the `_total` of its samples. The older
//! format, which every Prometheus reads without being asked and `promtool check metrics` expects, has one name in all
//! lines.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// The media type of [`of`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of a registry.
#[must_use]
pub fn of(registry: &Registry) -> String {
    let mut text = String::new();
    encode_registry(&mut text, registry).expect("a string can be written to");
    in_one_name(&text)
}

/// OpenMetrics as the older format.
fn in_one_name(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1024);
    // The line before that of the type.
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("# HELP ") {
            help = of.split_once(' ');
            continue;
        }
        match line.strip_prefix("# TYPE ").and_then(|of| of.split_once(' ')) {
            Some((name, kind)) => {
                let total = if kind == "counter" { "_total" } else { "" };
                if let Some((_, help)) = help.take() {
                    out.push_str(&format!("# HELP {name}{total} {help}\n"));
                }
                out.push_str(&format!("# TYPE {name}{total} {kind}\n"));
            }
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn a_counter_has_one_name_in_all_its_lines() {
        let mut registry = Registry::default();
        let (counter, gauge) = (Counter::<u64>::default(), Gauge::<i64>::default());
        counter.inc_by(3);
        registry.register("cakes", "Cakes eaten", counter);
        registry.register("guests", "Guests", gauge);
        let wanted = "# HELP cakes_total Cakes eaten.\n# TYPE cakes_total counter\ncakes_total 3\n\
                      # HELP guests Guests.\n# TYPE guests gauge\nguests 0\n";
        assert_eq!(of(&registry), wanted);
    }
}
