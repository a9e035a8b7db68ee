//! What PostgreSQL's values are for a user: its own types where there is one, else as they are written.

use crate::db::{DbError, Row, Value};
use std::error::Error as StdError;
use tokio_postgres::types::{FromSql, Kind, Type};

/// PostgreSQL counts days and microseconds from 2000-01-01; this is that day, counted from 1970-01-01.
const EPOCH_DAYS: i64 = 10_957;
const DAY_US: i64 = 86_400_000_000;

/// A row as it came.
pub(super) fn row(row: &tokio_postgres::Row) -> Result<Row, DbError> {
    let columns = row.columns().iter().enumerate();
    let values = columns.map(|(at, column)| {
        let raw =
            row.try_get::<_, Option<Raw<'_>>>(at).map_err(|error| unread(column, &error.to_string()))?;
        let Some(Raw(bytes)) = raw else { return Ok(Value::Null) };
        value(column.type_(), bytes).ok_or_else(|| unread(column, "cast it in the statement, say to text"))
    });
    Ok(Row::new(values.collect::<Result<_, _>>()?))
}

fn unread(column: &tokio_postgres::Column, why: &str) -> DbError {
    let message = format!("column `{}` of type {} can't be read: {why}", column.name(), column.type_());
    DbError::Statement { message, state: None }
}

/// The bytes of any type.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn value(of: &Type, bytes: &[u8]) -> Option<Value> {
    Some(match *of {
        Type::BOOL => Value::Bool(bytes.first()? != &0),
        Type::INT2 => Value::Int(i16::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::INT4 => Value::Int(i32::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::OID => Value::Int(u32::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::INT8 => Value::Int(i64::from_be_bytes(bytes.try_into().ok()?)),
        Type::FLOAT4 => Value::Float(f32::from_be_bytes(bytes.try_into().ok()?).into()),
        Type::FLOAT8 => Value::Float(f64::from_be_bytes(bytes.try_into().ok()?)),
        Type::BYTEA => Value::Bytes(bytes.to_vec()),
        Type::UUID => Value::Text(uuid::Uuid::from_slice(bytes).ok()?.to_string()),
        Type::NUMERIC => Value::Text(decimal(bytes)?),
        Type::DATE => Value::Text(match i32::from_be_bytes(bytes.try_into().ok()?) {
            i32::MAX => "infinity".into(),
            i32::MIN => "-infinity".into(),
            days => date(days.into()),
        }),
        Type::TIME => Value::Text(time(i64::from_be_bytes(bytes.try_into().ok()?))),
        Type::TIMESTAMP => Value::Text(moment(bytes, "")?),
        Type::TIMESTAMPTZ => Value::Text(moment(bytes, "+00")?),
        // A version comes first.
        Type::JSONB => text(bytes.get(1..)?)?,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::JSON | Type::XML | Type::UNKNOWN => {
            text(bytes)?
        }
        _ if matches!(of.kind(), Kind::Enum(_)) => text(bytes)?,
        _ => return None,
    })
}

/// A moment as the server writes it, in UTC.
fn moment(bytes: &[u8], zone: &str) -> Option<String> {
    Some(match i64::from_be_bytes(bytes.try_into().ok()?) {
        i64::MAX => "infinity".into(),
        i64::MIN => "-infinity".into(),
        us => {
            let (day, time) = (date(us.div_euclid(DAY_US)), time(us.rem_euclid(DAY_US)));
            match day.strip_suffix(" BC") {
                Some(day) => format!("{day} {time}{zone} BC"),
                None => format!("{day} {time}{zone}"),
            }
        }
    })
}

/// A day, counted from 2000-01-01, in the Gregorian calendar: years are counted from March, so that the day that some
/// of them have more comes last, and 400 of them are an era.
fn date(days: i64) -> String {
    let days = days + EPOCH_DAYS + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    // There is no year 0.
    if year > 0 {
        format!("{year:04}-{month:02}-{day:02}")
    } else {
        format!("{:04}-{month:02}-{day:02} BC", 1 - year)
    }
}

fn time(us: i64) -> String {
    let (seconds, fraction) = (us / 1_000_000, us % 1_000_000);
    let mut written = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction > 0 {
        written.push_str(format!(".{fraction:06}").trim_end_matches('0'));
    }
    written
}

fn text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(|text| Value::Text(text.to_owned()))
}

/// A decimal as it is written: groups of four digits, the first of them at a power of 10,000.
fn decimal(bytes: &[u8]) -> Option<String> {
    let mut words = bytes.chunks_exact(2).map(|word| i16::from_be_bytes([word[0], word[1]]));
    let (groups, weight, sign, scale) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let digits: Vec<i16> = words.collect();
    if digits.len() != usize::try_from(groups).ok()? {
        return None;
    }
    let mut written = match sign.cast_unsigned() {
        0 => String::new(),
        0x4000 => "-".to_owned(),
        0xC000 => return Some("NaN".into()),
        0xD000 => return Some("Infinity".into()),
        0xF000 => return Some("-Infinity".into()),
        _ => return None,
    };
    let at = |power: i32| {
        let index = usize::try_from(i32::from(weight) - power).ok();
        index.and_then(|index| digits.get(index)).copied().unwrap_or(0)
    };
    let highest = i32::from(weight).max(0);
    written.push_str(&at(highest).to_string());
    for power in (0..highest).rev() {
        written.push_str(&format!("{:04}", at(power)));
    }
    let scale = usize::try_from(scale).ok()?;
    if scale > 0 {
        let groups = i32::try_from(scale.div_ceil(4)).ok()?;
        let fraction: String = (1..=groups).map(|group| format!("{:04}", at(-group))).collect();
        written.push('.');
        written.push_str(&fraction[..scale]);
    }
    Some(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(groups: &[i16], weight: i16, sign: u16, scale: i16) -> String {
        let head = [groups.len() as i16, weight, sign.cast_signed(), scale];
        let bytes: Vec<u8> = head.iter().chain(groups).flat_map(|word| word.to_be_bytes()).collect();
        decimal(&bytes).unwrap()
    }

    #[test]
    fn decimals_are_written_as_the_server_writes_them() {
        assert_eq!(of(&[], 0, 0, 0), "0");
        assert_eq!(of(&[], 0, 0, 2), "0.00");
        assert_eq!(of(&[42], 0, 0x4000, 0), "-42");
        assert_eq!(of(&[1, 2345, 6700], 1, 0, 2), "12345.67");
        assert_eq!(of(&[1], 2, 0, 0), "100000000");
        assert_eq!(of(&[5], -1, 0, 4), "0.0005");
        assert_eq!(of(&[50], -2, 0, 6), "0.000000");
        assert_eq!(of(&[], 0, 0xC000, 0), "NaN");
    }
    #[test]
    fn days_and_times_are_written_as_the_server_writes_them() {
        for (days, written) in [
            (0, "2000-01-01"),
            (59, "2000-02-29"),
            (-10_957, "1970-01-01"),
            (8_825, "2024-02-29"),
            (-730_119, "0001-01-01"),
            (-730_120, "0001-12-31 BC"),
        ] {
            assert_eq!(date(days), written);
        }
        assert_eq!(time(0), "00:00:00");
        assert_eq!(time(86_399_500_000), "23:59:59.5");
        assert_eq!(moment(&(-1i64).to_be_bytes(), "+00").unwrap(), "1999-12-31 23:59:59.999999+00");
    }
}
