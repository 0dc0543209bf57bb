//! Cells in columns.

/// Rows of cells: the first column to the left, others to the right.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Adds a row; it may have fewer cells than others.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The rows as lines. A column in which nothing stands takes no room.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width_of = |cell: &String| cell.chars().count();
        let width = |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(width_of).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((at, cell), width) in row.iter().enumerate().zip(&widths).filter(|(_, width)| **width > 0) {
                let space = " ".repeat(width - width_of(cell));
                match at {
                    0 => line.extend([cell, space.as_str()]),
                    _ => line.extend(["  ", space.as_str(), cell]),
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_empty_ones_are_left_out() {
        let mut table = Table::default();
        table.row(["A", "B", "", "C"].map(str::to_owned));
        table.row(["long", "1,000"].map(str::to_owned));
        table.row(["é", "1", "", "22"].map(str::to_owned));
        assert_eq!(table.text(), "A         B   C\nlong  1,000\né         1  22\n");
        assert_eq!(Table::default().text(), "");
    }
}
