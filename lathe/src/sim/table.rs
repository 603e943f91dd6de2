//! Columns for people.

/// Rows as columns as wide as their widest cell, two spaces apart.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn columns_line_up_and_lines_end_where_the_text_ends() {
        let rows = [
            vec!["GPU".to_owned(), "NAME".to_owned()],
            vec!["0".to_owned(), "A100".to_owned()],
            vec![],
        ];
        assert_eq!(aligned(&rows), "GPU  NAME\n0    A100\n\n");
    }
}
