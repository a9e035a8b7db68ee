//! The stage `alerts`: Prometheus takes the rules, and they fire when they should.

use super::Context;
use crate::process::{Cmd, Failure};

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let folder = context.root.join("docs/observability");
    Cmd::new("promtool check rules alerts.yml", &folder).run()?;
    Cmd::new("promtool test rules alerts_test.yml", &folder).run()
}
