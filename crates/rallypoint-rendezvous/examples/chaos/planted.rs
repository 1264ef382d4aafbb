//! Bugs to be found. A check is only worth what it catches.

use serde_json::{Value, json};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// Of a death it is told that another node died.
    Death,
    /// Who died has left, as is told.
    Leave,
    /// Whatever is told, it is an exclusion.
    Exclusion,
    /// Whoever waits, it is told that the state is lost.
    Loss,
    /// Rank 2 believes to have rank 1.
    Rank,
    /// A node is stopped for two leases, and nobody knows.
    Harm,
}

impl Plant {
    pub(crate) const ALL: [(&str, Plant); 6] = [
        ("death", Plant::Death),
        ("leave", Plant::Leave),
        ("exclusion", Plant::Exclusion),
        ("loss", Plant::Loss),
        ("rank", Plant::Rank),
        ("harm", Plant::Harm),
    ];

    pub(crate) fn named(name: &str) -> Option<Plant> {
        Plant::ALL.iter().find(|(other, _)| *other == name).map(|(_, plant)| *plant)
    }

    /// Makes what a node says wrong.
    pub(crate) fn twist(self, line: &mut Value) {
        let change = line["change"].as_str().unwrap_or_default().to_owned();
        let died = change.starts_with("Died");
        match self {
            Plant::Death if died => {
                let other = if change.contains("\"n0\"") { "n1" } else { "n0" };
                line["change"] = json!(format!("Died {{ node: \"{other}\", rank: None }}"));
            }
            Plant::Leave if died => line["change"] = json!(change.replace("Died", "Left")),
            Plant::Exclusion if !change.is_empty() => line["change"] = json!("Excluded"),
            Plant::Loss if change.starts_with("Waiting") => line["change"] = json!("StateLost"),
            Plant::Rank if line["rank"] == 2 => line["rank"] = json!(1),
            _ => {}
        }
    }
}
