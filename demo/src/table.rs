//! Hides how the summary is laid out.

/// How one step went.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) step: String,
    pub(crate) expected: String,
    pub(crate) measured: String,
    pub(crate) ok: bool,
}

/// The summary, with a heading.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut cells = vec![["step", "expected", "measured", "ok"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| {
        let ok = if row.ok { "yes" } else { "NO" };
        [
            row.step.clone(),
            row.expected.clone(),
            row.measured.clone(),
            ok.to_owned(),
        ]
    }));
    let width = |column: usize| {
        let widths = cells.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let rule = widths.map(|width| "-".repeat(width));
    cells.insert(1, rule);
    let line = |row: &[String; 4]| {
        let padded = row.iter().zip(widths);
        let padded: Vec<String> = padded.map(|(cell, w)| format!("{cell:w$}")).collect();
        format!(" {}\n", padded.join("  ").trim_end())
    };
    cells.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: &str, measured: &str, ok: bool) -> Row {
        Row {
            step: step.into(),
            expected: "soon".into(),
            measured: measured.into(),
            ok,
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = summary(&[row("1 join", "1 µs", true), row("2", "never, really", false)]);
        let wanted = concat!(
            " step    expected  measured       ok\n",
            " ------  --------  -------------  ---\n",
            " 1 join  soon      1 µs           yes\n",
            " 2       soon      never, really  NO\n",
        );
        assert_eq!(text, wanted);
    }
}
