//! What the clocks of an etcd's servers say: each of their answers over HTTP has a `Date`. Those over gRPC have none.

use std::time::{Duration, SystemTime};

use rallypoint_core::EtcdSettings;
use reqwest::header::DATE;

use crate::cause::bottom;
use crate::{Error, ErrorKind, Result, http};

/// Every etcd answers it, to whomever.
const PATH: &str = "/version";

/// A look at the clock of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDate {
    /// The server.
    pub endpoint: String,
    /// When it was asked, by this machine's clock.
    pub asked: SystemTime,
    /// When it had answered.
    pub answered: SystemTime,
    /// What it says, in whole seconds: it may be almost a second later there.
    pub date: SystemTime,
}

impl ServerDate {
    /// By how many seconds this machine's clock is ahead of the server's, at least and at most; below 0 it is behind.
    #[must_use]
    pub fn ahead(&self) -> (f64, f64) {
        let since = |later: SystemTime| match later.duration_since(self.date) {
            Ok(ahead) => ahead.as_secs_f64(),
            Err(behind) => -behind.duration().as_secs_f64(),
        };
        (since(self.asked) - 1.0, since(self.answered))
    }
}

/// Asks all servers for their time, at once. Fails only for wrong settings.
pub async fn server_dates(settings: &EtcdSettings) -> Result<Vec<Result<ServerDate>>> {
    let http = http::client(settings)?;
    let ask = |url: String| date(&http, url, settings.request_timeout);
    Ok(futures::future::join_all(settings.urls().into_iter().map(ask)).await)
}

async fn date(http: &reqwest::Client, endpoint: String, timeout: Duration) -> Result<ServerDate> {
    let error = |kind, why: String| Error::new(kind, "ask for the time").endpoint(&endpoint).because(why);
    let asked = SystemTime::now();
    let answer = http.get(format!("{endpoint}{PATH}")).timeout(timeout).send().await;
    let answered = SystemTime::now();
    let answer =
        answer.map_err(|cause| error(ErrorKind::Unreachable, bottom(&cause.without_url()).to_string()))?;
    let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
    let date = date.ok_or_else(|| error(ErrorKind::Protocol, "its answer has no date".to_owned()))?;
    Ok(ServerDate { endpoint, asked, answered, date })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_date_bounds_how_far_clocks_are_apart() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let seen = |asked, answered| ServerDate {
            endpoint: String::new(),
            asked: at(asked),
            answered: at(answered),
            date: at(100_000),
        };
        // The server's clock may be anywhere within the second, and the answer underway for a while.
        assert_eq!(seen(100_250, 100_500).ahead(), (-0.75, 0.5));
        assert_eq!(seen(97_000, 97_500).ahead(), (-4.0, -2.5));
        assert_eq!(seen(104_000, 104_000).ahead(), (3.0, 4.0));
    }
}
