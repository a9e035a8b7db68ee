//! What was found out about statements, so that the next one with the same text needn't be read again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Statements that are remembered at the most; then it begins anew.
const MOST: usize = 1000;
/// A text longer than this isn't remembered.
const LONGEST: usize = 10_000;

/// By a statement's text. What is remembered follows from the text alone.
#[derive(Debug)]
pub(crate) struct Known<T>(Mutex<HashMap<String, T>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Known<T> {
    pub(crate) fn of(&self, sql: &str, find_out: impl FnOnce(&str) -> T) -> T {
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(sql) {
            return known.clone();
        }
        let found = find_out(sql);
        if sql.len() <= LONGEST {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(sql.to_owned(), found.clone());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_read_once_and_memory_is_bounded() {
        let known = Known::default();
        assert_eq!(known.of("a", |_| 1), 1);
        assert_eq!(known.of("a", |_| 2), 1);
        for number in 0..MOST * 2 {
            known.of(&number.to_string(), |_| 0);
        }
        assert!(known.0.lock().unwrap().len() <= MOST);
        let long = "x".repeat(LONGEST + 1);
        assert_eq!((known.of(&long, |_| 1), known.of(&long, |_| 2)), (1, 2));
    }
}
