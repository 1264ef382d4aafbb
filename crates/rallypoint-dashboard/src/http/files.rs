//! The page, as it stands in this program.

use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;

use super::{answer, refusal};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Name, kind, content.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", CSS, include_str!("../page/style.css")),
    ("address.js", SCRIPT, include_str!("../page/address.js")),
    ("app.js", SCRIPT, include_str!("../page/app.js")),
    ("ask.js", SCRIPT, include_str!("../page/ask.js")),
    ("dom.js", SCRIPT, include_str!("../page/dom.js")),
    ("grid.js", SCRIPT, include_str!("../page/grid.js")),
    ("live.js", SCRIPT, include_str!("../page/live.js")),
    ("order.js", SCRIPT, include_str!("../page/order.js")),
    ("run.js", SCRIPT, include_str!("../page/run.js")),
    ("runs.js", SCRIPT, include_str!("../page/runs.js")),
    ("filter.js", SCRIPT, include_str!("../page/filter.js")),
    ("table.js", SCRIPT, include_str!("../page/table.js")),
    ("timeline.js", SCRIPT, include_str!("../page/timeline.js")),
    ("icon.svg", SVG, include_str!("../page/icon.svg")),
];

pub(super) async fn index() -> Response {
    answer(StatusCode::OK, HTML, include_str!("../page/index.html"))
}

/// Browsers ask for it by themselves.
pub(super) async fn icon() -> Response {
    file(Path("icon.svg".to_owned())).await
}

pub(super) async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, content)) => answer(StatusCode::OK, kind, *content),
        None => refusal(StatusCode::NOT_FOUND, "the page has no such file"),
    }
}
