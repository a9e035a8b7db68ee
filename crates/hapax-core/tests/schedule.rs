//! When schedules fire: cron expressions in time zones, where clocks are put forward and back, and after an outage.

use hapax_core::{
    error::{Coded, code},
    schedule::{Firing, Timetable},
};
use jiff::{
    Span, Timestamp,
    civil::{DateTime, Time},
    tz::{TimeZone, db},
};
use proptest::prelude::*;

const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3600 * SECOND_US;
/// 28 March 2026, 12:00 UTC: in the next night Berlin's clocks go from 2:00 to 3:00, at 1:00 UTC.
const SPRING_US: i64 = 1_774_699_200 * SECOND_US;
/// 24 October 2026, 12:00 UTC: in the next night Berlin's clocks go from 3:00 to 2:00, at 1:00 UTC.
const AUTUMN_US: i64 = 1_792_843_200 * SECOND_US;

fn timetable(cron: &str, zone: &str) -> Timetable {
    Timetable::new(cron, zone).expect("it can be read")
}

/// The next times, as the name of a run has them.
fn times(cron: &str, zone: &str, from_us: i64, count: usize) -> Vec<String> {
    let timetable = timetable(cron, zone);
    let first = timetable.next_after(from_us);
    std::iter::successors(first, |at| timetable.next_after(*at)).take(count).map(Timetable::shown).collect()
}

#[test]
fn a_time_that_does_not_exist_fires_once_behind_the_gap() {
    let times = times("30 2 * * *", "Europe/Berlin", SPRING_US, 3);
    assert_eq!(times, ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"]);
}

/// The search for tomorrow's time passes through the gap of tonight: that is no firing.
#[test]
fn a_gap_that_hides_no_time_of_the_expression_fires_nothing() {
    for (cron, zone, noon_before, fires) in [
        ("@daily", "Europe/London", "2027-03-27T12:00:00Z", ["2027-03-28T00:00:00Z", "2027-03-28T23:00:00Z"]),
        (
            "30 1 * * *",
            "Europe/Berlin",
            "2027-03-27T12:00:00Z",
            ["2027-03-28T00:30:00Z", "2027-03-28T23:30:00Z"],
        ),
        (
            "0 1 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            ["2027-03-14T06:00:00Z", "2027-03-15T05:00:00Z"],
        ),
        (
            "0 9 * * *",
            "Africa/Cairo",
            "2027-04-29T12:00:00Z",
            ["2027-04-30T06:00:00Z", "2027-05-01T06:00:00Z"],
        ),
        // These are hidden: once behind the gap, and once the day after.
        (
            "0 0 * * *",
            "Africa/Cairo",
            "2027-04-29T12:00:00Z",
            ["2027-04-29T22:00:00Z", "2027-04-30T21:00:00Z"],
        ),
        (
            "30 2 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            ["2027-03-14T07:00:00Z", "2027-03-15T06:30:00Z"],
        ),
        // 23:30 of this Saturday is hidden, and behind the gap it is Sunday.
        (
            "30 23 * * SAT",
            "America/Nuuk",
            "2027-03-27T12:00:00Z",
            ["2027-03-28T01:00:00Z", "2027-04-04T00:30:00Z"],
        ),
    ] {
        let from_us = noon_before.parse::<Timestamp>().unwrap().as_microsecond();
        assert_eq!(times(cron, zone, from_us, 2), fires, "{cron} {zone}");
        let [first_us, second_us] = fires.map(|at| at.parse::<Timestamp>().unwrap().as_microsecond());
        let firing = timetable(cron, zone).firing(first_us, second_us, 1);
        assert_eq!((firing.at_us, firing.missed), (second_us, 1), "{cron} {zone}");
    }
}

/// When a time of the day comes, told without any search: at the first moment at which the clocks show it or a later one.
fn comes(clocks: &[(Timestamp, DateTime)], time: Time) -> Vec<i64> {
    let [first, last] = [clocks[0].1.date(), clocks[clocks.len() - 1].1.date()];
    let inner = first.tomorrow().unwrap().series(Span::new().days(1)).take_while(|day| *day < last);
    let at = inner.map(|day| clocks.iter().find(|(_, shown)| *shown >= day.to_datetime(time)).unwrap().0);
    at.map(Timestamp::as_microsecond).collect()
}

/// In every zone, around every change of its clocks in three years, at every half hour.
#[test]
fn a_time_of_the_day_fires_once_on_every_day_whatever_the_clocks_do() {
    let [start, end] =
        ["2026-01-01T00:00:00Z", "2029-01-01T00:00:00Z"].map(|at| at.parse::<Timestamp>().unwrap());
    let mut changes = 0;
    for name in db().available() {
        let Ok(zone) = TimeZone::get(name.as_str()) else { continue };
        for change in zone.following(start).take_while(|change| change.timestamp() < end) {
            changes += 1;
            // Clocks change at quarters of an hour, and are set to some.
            let quarters = (-300..=300).map(|n| change.timestamp() + Span::new().minutes(n * 15));
            let clocks: Vec<_> = quarters.map(|at| (at, zone.to_datetime(at))).collect();
            for half in 0..48 {
                let time = Time::midnight() + Span::new().minutes(half * 30);
                let cron = format!("{} {} * * *", time.minute(), time.hour());
                let timetable = timetable(&cron, name.as_str());
                let expected = comes(&clocks, time);
                let (first, last) = (expected[0], expected[expected.len() - 1]);
                let fired =
                    std::iter::successors(timetable.next_after(first - 1), |at| timetable.next_after(*at));
                let fired: Vec<_> = fired.take_while(|at| *at <= last).collect();
                assert_eq!(fired, expected, "{cron} in {name}");
                assert_eq!(
                    timetable.firing(first, last, 1).missed,
                    expected.len() as u64 - 1,
                    "{cron} in {name}"
                );
            }
        }
    }
    assert!(changes > 500, "{changes} are too few to have looked anywhere");
}

#[test]
fn a_time_that_comes_twice_fires_once_at_the_first() {
    let times = times("30 2 * * *", "Europe/Berlin", AUTUMN_US, 3);
    assert_eq!(times, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z", "2026-10-27T01:30:00Z"]);
}

#[test]
fn an_interval_goes_on_in_real_time_through_a_gap_and_through_an_hour_that_comes_twice() {
    for from_us in [SPRING_US, AUTUMN_US] {
        let half_hours = timetable("*/30 * * * *", "Europe/Berlin");
        let mut at_us = from_us;
        for _ in 0..48 {
            let next_us = half_hours.next_after(at_us).expect("there is always one");
            assert_eq!(next_us - at_us, HOUR_US / 2, "after {}", Timetable::shown(at_us));
            at_us = next_us;
        }
    }
}

/// Whatever isn't a single time of the day counts as an interval: it goes by the clock on the wall.
#[test]
fn a_list_of_hours_is_skipped_in_a_gap_and_fires_twice_where_its_hour_does() {
    let spring = times("30 2,14 * * *", "Europe/Berlin", SPRING_US + 2 * HOUR_US, 2);
    assert_eq!(spring, ["2026-03-29T12:30:00Z", "2026-03-30T00:30:00Z"]);
    let autumn = times("30 2,14 * * *", "Europe/Berlin", AUTUMN_US + HOUR_US, 3);
    assert_eq!(autumn, ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T13:30:00Z"]);
}

#[test]
fn a_zone_that_moves_its_clocks_by_half_an_hour_is_right_as_well() {
    // Lord Howe: on 4 October 2026 from 2:00 to 2:30, at 15:30 UTC of the day before; on 5 April 2026 back.
    let spring = times("15 2 * * *", "Australia/Lord_Howe", 1_790_985_600 * SECOND_US, 2);
    assert_eq!(spring, ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]);
    let autumn = times("45 1 * * *", "Australia/Lord_Howe", 1_775_260_800 * SECOND_US, 2);
    assert_eq!(autumn, ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]);
}

#[test]
fn expressions_may_name_seconds_years_days_and_nicknames() {
    let from_us = SPRING_US;
    assert_eq!(times("*/20 * * * * *", "UTC", from_us, 2), ["2026-03-28T12:00:20Z", "2026-03-28T12:00:40Z"]);
    assert_eq!(times("0 9 * * MON-FRI", "UTC", from_us, 1), ["2026-03-30T09:00:00Z"]);
    assert_eq!(times("0 0 L * *", "UTC", from_us, 2), ["2026-03-31T00:00:00Z", "2026-04-30T00:00:00Z"]);
    assert_eq!(times("@daily", "America/New_York", from_us, 1), ["2026-03-29T04:00:00Z"]);
    assert_eq!(
        times("0 0 0 1 1 * 2027", "UTC", from_us, 2),
        ["2027-01-01T00:00:00Z"],
        "and then never again"
    );
}

#[test]
fn what_means_nothing_is_refused_with_a_reason() {
    for bad in [
        "",
        "every day",
        "61 * * * *",
        "* * *",
        "* * * * * * * *",
        "0 0 * * FUNDAY",
        "\u{0}",
        "*/61 * * * *",
        "0 */25 * * *",
        "*/61 * * * * *",
        "0 0 1,,2 * *",
        "1, * * * *",
    ] {
        let error = Timetable::new(bad, "UTC").expect_err(bad);
        assert_eq!(error.code(), code::BAD_CRON, "{error}");
        assert!(error.to_string().starts_with(&format!("`{bad}` is no cron expression: ")), "{error}");
    }
    for longest in ["*/60 * * * *", "0 */24 * * *", "*/60 */60 */24 */31 */12 */7 */100"] {
        assert!(timetable(longest, "UTC").next_after(0).is_some(), "{longest}");
    }
    for zone in ["", "Berlin", "Europe/Berlin2", "../../etc/passwd", "CET-1CEST", "Etc/Unknown"] {
        assert_eq!(Timetable::new("@daily", zone).expect_err(zone).code(), code::BAD_ZONE);
    }
    assert_eq!(timetable("0 0 30 2 *", "UTC").next_after(0), None, "there is no such day");
}

#[test]
fn after_an_outage_the_latest_are_made_up_for_and_the_rest_is_counted() {
    let hourly = timetable("@hourly", "UTC");
    let at = |hour: i64| hour * HOUR_US;
    let on_time = hourly.firing(at(1), at(1), 1);
    assert_eq!(on_time, Firing { at_us: at(1), starts: true, missed: 0, next_us: Some(at(2)) });
    let late = hourly.firing(at(1), at(5) + 7, 1);
    assert_eq!(late, Firing { at_us: at(5), starts: true, missed: 4, next_us: Some(at(6)) });
    let two = hourly.firing(at(1), at(5), 2);
    assert_eq!(two, Firing { at_us: at(4), starts: true, missed: 3, next_us: Some(at(5)) });
    assert_eq!(
        hourly.firing(at(5), at(5), 2),
        Firing { at_us: at(5), starts: true, missed: 0, next_us: Some(at(6)) }
    );
    let all = hourly.firing(at(1), at(5), 1000);
    assert_eq!((all.at_us, all.missed, all.next_us), (at(1), 0, Some(at(2))));
}

/// A month of seconds is passed over in portions, and none of them is counted twice or not at all.
#[test]
fn a_long_outage_is_passed_over_in_portions() {
    let secondly = timetable("* * * * * *", "UTC");
    let (mut due_us, now_us, mut missed) = (0, 100_000 * SECOND_US, 0);
    let last = loop {
        let firing = secondly.firing(due_us, now_us, 3);
        missed += firing.missed;
        due_us = firing.next_us.expect("there is always one");
        if firing.starts {
            break firing;
        }
    };
    assert_eq!((last.at_us, missed), (99_998 * SECOND_US, 99_998));
}

/// Nobody waits for a year of seconds to be walked through.
#[test]
fn what_comes_is_told_at_once_however_long_the_outage_was() {
    let secondly = timetable("* * * * * *", "Europe/Berlin");
    let now_us = SPRING_US + 7;
    assert_eq!(secondly.made_up(0, now_us, 2), [SPRING_US - SECOND_US, SPRING_US]);
    assert_eq!(secondly.count(0, now_us, 1000), 1000);
    let once = timetable("0 0 1 1 *", "UTC");
    let first_us = once.next_after(0).unwrap();
    assert_eq!(once.made_up(first_us, now_us, 1000).len() as u64, once.count(first_us, now_us, 1000));
    assert!(once.made_up(now_us + 1, now_us, 1).is_empty() && once.count(now_us + 1, now_us, 1) == 0);
}

fn expressions() -> impl Strategy<Value = (&'static str, &'static str)> {
    let cron = prop::sample::select(vec![
        "30 2 * * *",
        "0 3 * * *",
        "0 1 * * *",
        "@daily",
        "0 2 29 3 *",
        "*/7 * * * *",
        "30 1-3 * * *",
        "15,45 * * * *",
        "0 0 * * SUN",
        "*/45 * * * * *",
    ]);
    let zone = prop::sample::select(vec![
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Pacific/Apia",
    ]);
    (cron, zone)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// From wherever it is asked, there is one next time: otherwise two processes would disagree on what is due.
    #[test]
    fn the_next_time_is_the_same_from_every_moment_before_it(
        (cron, zone) in expressions(),
        // Within four days around a change of the clocks somewhere.
        from_s in prop::sample::select(vec![1_774_699_200i64, 1_792_843_200, 1_790_985_600, 1_775_260_800, 1_741_400_000])
            .prop_flat_map(|base| base - 172_800..base + 172_800),
        part_us in 0..1_000_000i64,
        share in 0.0..1.0f64,
    ) {
        let timetable = timetable(cron, zone);
        let from_us = from_s * SECOND_US + part_us;
        let next_us = timetable.next_after(from_us).unwrap();
        prop_assert!(next_us > from_us);
        let between_us = from_us + ((next_us - from_us) as f64 * share) as i64;
        let between_us = between_us.clamp(from_us, next_us - 1);
        prop_assert_eq!(timetable.next_after(between_us), Some(next_us), "{} {} from {}", cron, zone, Timetable::shown(between_us));
    }

    /// What is told to come is what comes, firing by firing.
    #[test]
    fn what_will_be_made_up_for_is_what_is_fired(
        (cron, zone) in expressions(),
        from_s in prop::sample::select(vec![1_774_699_200i64, 1_792_843_200]),
        late_s in 0..200_000i64,
        catch_up in 1..40u32,
    ) {
        let timetable = timetable(cron, zone);
        let first_us = timetable.next_after(from_s * SECOND_US).unwrap();
        let now_us = first_us + late_s * SECOND_US;
        let (mut due_us, mut fired, mut passed) = (first_us, vec![], 0);
        while due_us <= now_us {
            let firing = timetable.firing(due_us, now_us, catch_up);
            passed += firing.missed;
            fired.extend(firing.starts.then_some(firing.at_us));
            due_us = firing.next_us.unwrap();
        }
        prop_assert_eq!(timetable.count(first_us, now_us, u64::MAX), passed + fired.len() as u64);
        prop_assert_eq!(timetable.made_up(first_us, now_us, catch_up), fired, "{} {}", cron, zone);
    }
}
