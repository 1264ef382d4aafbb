//! This machine's clock, held against etcd's.

use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::{ServerDate, server_dates};

pub(crate) async fn look(etcd: Option<&EtcdSettings>, most: Duration, limit: Duration) -> Result<(), String> {
    let Some(etcd) = etcd else { return Err("there is no etcd to ask for the time".to_owned()) };
    let dates = tokio::time::timeout(limit, server_dates(etcd)).await;
    let dates = dates.map_err(|_| format!("no etcd has told its time for {} s", limit.as_secs_f64()))?;
    let dates = dates.map_err(|error| error.to_string())?;
    let mut silent = None;
    let mut found = Vec::new();
    for date in dates {
        match date {
            Ok(date) => found.push(date),
            Err(error) => silent = Some(error.to_string()),
        }
    }
    match (found.is_empty(), silent) {
        (true, Some(why)) => Err(format!("no etcd tells its time: {why}")),
        _ => judge(&found, most),
    }
}

/// One server whose clock agrees is enough: the others may be wrong themselves.
fn judge(dates: &[ServerDate], most: Duration) -> Result<(), String> {
    let most = most.as_secs_f64();
    let off = |date: &ServerDate| match date.ahead() {
        (least, _) if least > most => Some((least, "ahead of")),
        (_, most_ahead) if most_ahead < -most => Some((-most_ahead, "behind")),
        _ => None,
    };
    let mut nearest: Option<(f64, &str, &str)> = None;
    for date in dates {
        let Some((seconds, way)) = off(date) else { return Ok(()) };
        if nearest.is_none_or(|(least, ..)| seconds < least) {
            nearest = Some((seconds, way, &date.endpoint));
        }
    }
    match nearest {
        None => Ok(()),
        Some((seconds, way, server)) => Err(format!(
            "this machine's clock is at least {seconds:.1} s {way} that of the etcd at {server}, and {most} s are allowed: is NTP running here?"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn seen(ahead_ms: i64) -> ServerDate {
        let date: SystemTime = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let by = Duration::from_millis(ahead_ms.unsigned_abs());
        let now = if ahead_ms < 0 { date - by } else { date + by };
        ServerDate { endpoint: format!("http://e{ahead_ms}"), asked: now, answered: now, date }
    }

    #[test]
    fn a_clock_is_wrong_if_it_is_so_by_all_servers() {
        let judge = |ahead: &[i64]| {
            judge(&ahead.iter().copied().map(seen).collect::<Vec<_>>(), Duration::from_secs(2))
        };
        assert_eq!(judge(&[0]), Ok(()));
        // The date has whole seconds: it may be 2.9 s later there.
        assert_eq!(judge(&[2_900]), Ok(()));
        assert_eq!(judge(&[-2_000]), Ok(()));
        assert!(
            judge(&[3_100]).unwrap_err().contains("at least 2.1 s ahead of that of the etcd at http://e3100")
        );
        assert!(judge(&[-2_500, -90_000]).unwrap_err().contains("at least 2.5 s behind"));
        assert_eq!(judge(&[50_000, 100]), Ok(()));
    }
}
