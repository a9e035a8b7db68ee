//! The plot: horizontal bars on a logarithmic scale, ours beside the limits.

use super::{rows::Row, table::short};
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const LABELS: f64 = 310.0;
/// Room for the figure behind the longest bar.
const FIGURES: f64 = 70.0;
const BAR: f64 = 16.0;
const PITCH: f64 = 22.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 28.0;

/// Steps per second of the limits and of every chain of steps.
pub(super) fn bars(rows: &[Row]) -> String {
    let shown: Vec<&Row> = rows.iter().filter(|row| is_shown(row)).collect();
    let rates = || shown.iter().map(|row| row.figures.steps_per_s.max(1.0));
    let (low, high) = (rates().fold(f64::MAX, f64::min), rates().fold(1.0, f64::max));
    let scale = Scale::new(low, high);
    let height = TOP + PITCH * shown.len() as f64 + BOTTOM;
    let mut svg = head(height);
    svg += &scale.ticks(height);
    for (index, row) in shown.iter().enumerate() {
        svg += &bar(row, TOP + PITCH * index as f64, &scale);
    }
    svg + "</svg>\n"
}

/// W3 counts items and W4 copies bytes: their rates would be compared with what they aren't.
fn is_shown(row: &Row) -> bool {
    row.is_limit() && !row.has_own_table()
        || ["w1", "w2", "long", "fleet"].iter().any(|id| row.id.starts_with(id))
}

fn head(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\" font-weight=\"bold\">Steps per second, logarithmic: \
         Hapax (blue) and the limits of the same disk and databases (grey)</text>\n"
    )
}

fn bar(row: &Row, y: f64, scale: &Scale) -> String {
    let rate = row.figures.steps_per_s;
    let (end, colour) = (scale.x(rate), colour(row));
    let kind = if row.is_limit() { "limit" } else { row.durability };
    let label = escaped(&format!("{}, {} {kind}", row.title, row.store));
    let (text_y, width) = (y + BAR - 4.0, end - LABELS);
    format!(
        "<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{label}</text>\n\
         <rect x=\"{LABELS:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR:.1}\" fill=\"{colour}\"/>\n\
         <text x=\"{:.1}\" y=\"{text_y:.1}\">{}</text>\n",
        LABELS - 6.0,
        end + 5.0,
        short(rate),
    )
}

fn colour(row: &Row) -> &'static str {
    match (row.is_limit(), row.durability) {
        (true, _) => "#9aa0a6",
        (false, "strict") => "#7baaf7",
        (false, _) => "#1a5fd0",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// From a rate to a place, by whole powers of ten.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn new(low: f64, high: f64) -> Self {
        let low = low.min(high).log10().floor() as i32;
        Self { low, high: (high.log10().ceil() as i32).max(low + 1) }
    }

    fn x(&self, rate: f64) -> f64 {
        let share = (rate.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        LABELS + share.max(0.0) * (WIDTH - LABELS - FIGURES)
    }

    fn ticks(&self, height: f64) -> String {
        let mut ticks = String::new();
        for power in self.low..=self.high {
            let rate = 10f64.powi(power);
            let (x, bottom, figure) = (self.x(rate), height - BOTTOM, short(rate));
            // A string takes everything that is written to it.
            let _ = writeln!(
                ticks,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{figure}</text>",
                TOP - 8.0,
                bottom + 16.0,
            );
        }
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::{super::table::tests::row, *};

    #[test]
    fn ten_times_the_rate_is_one_tick_further() {
        let scale = Scale::new(120.0, 45_000.0);
        assert_eq!((scale.low, scale.high), (2, 5));
        assert_eq!(scale.x(100.0), LABELS);
        let step = scale.x(1000.0) - scale.x(100.0);
        assert!((scale.x(10_000.0) - scale.x(1000.0) - step).abs() < 1e-9);
        assert!((scale.x(100_000.0) - (WIDTH - FIGURES)).abs() < 1e-9);
    }

    #[test]
    fn each_chain_and_limit_has_a_bar_with_its_figure() {
        let limit = Row { id: "row".into(), ..row("1 row <commit>", "", 3000.0) };
        let plot = bars(&[limit, row("W1", "strict", 2500.0), row("W3", "strict", 9.0)]);
        assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"));
        assert!(plot.contains(">1 row &lt;commit&gt;, sqlite limit</text>"), "{plot}");
        assert!(plot.contains(">W1, sqlite strict</text>") && plot.contains(">2,500</text>"));
        assert!(!plot.contains(">W3"));
        assert_eq!(plot.matches("<rect x=").count(), 2);
    }

    #[test]
    fn no_rows_are_an_empty_plot() {
        assert!(bars(&[]).ends_with("</svg>\n"));
    }
}
