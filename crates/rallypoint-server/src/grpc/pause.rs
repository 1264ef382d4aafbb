//! Waits for room.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(640);

/// Until the next try, when there was no room for a message: longer each time. Very many may wait, and must cost nothing.
#[derive(Debug, Default)]
pub(super) struct Pause {
    sleep: Option<Pin<Box<Sleep>>>,
    last: Duration,
}

impl Pause {
    /// There is no room.
    pub(super) fn begin(&mut self) {
        self.last = (2 * self.last).clamp(FIRST, LONGEST);
        self.sleep = Some(Box::pin(tokio::time::sleep(self.last)));
    }

    /// There is room.
    pub(super) fn end(&mut self) {
        self.last = Duration::ZERO;
    }

    /// Whether it is time for a try.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(sleep) = &mut self.sleep {
            ready!(sleep.as_mut().poll(cx));
            self.sleep = None;
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_room_asks_less_and_less_often() {
        let mut pause = Pause::default();
        let pauses = [(); 7].map(|()| {
            pause.begin();
            pause.last.as_millis()
        });
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 640]);
        pause.end();
        pause.begin();
        assert_eq!(pause.last, FIRST);
    }
}
