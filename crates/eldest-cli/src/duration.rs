//! Parses durations.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a duration as people write it, such as `10s`, `500ms` or `1m30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok() {
        return Err(format!(
            "it has no unit; write {text}s for seconds, or {text}ms"
        ));
    }
    let parsed: SignedDuration = text
        .parse()
        .map_err(|_| "write it as 10s, 500ms or 1m30s".to_owned())?;
    parsed
        .try_into()
        .map_err(|_| "it must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them_and_never_without_a_unit() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(duration("10").unwrap_err().contains("10s"));
        assert!(duration("-10s").unwrap_err().contains("negative"));
        assert!(duration("soon").unwrap_err().contains("500ms"));
    }
}
