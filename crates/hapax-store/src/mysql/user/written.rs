//! Which tables a statement may write to: those that don't roll back are none for a transaction.

use sqlparser::{
    ast::{ObjectName, Statement, TableObject, visit_relations},
    dialect::MySqlDialect,
    parser::Parser,
    tokenizer::{Token, Tokenizer},
};
use std::ops::ControlFlow;

/// The tables that a statement may write to, without quotes, with their schema if it is named. One that can't be
/// parsed is taken to write to whatever it names.
pub(super) fn written(sql: &str) -> Vec<String> {
    let mut named = match Parser::parse_sql(&MySqlDialect {}, sql).as_deref() {
        Ok([Statement::Query(_) | Statement::ExplainTable { .. } | Statement::Explain { .. }]) => vec![],
        Ok([Statement::Insert(insert)]) => match &insert.table {
            TableObject::TableName(name) => vec![name_of(name)],
            _ => all_names(sql),
        },
        Ok(statements) => {
            let mut named = vec![];
            let _ = visit_relations(&statements.to_vec(), |relation| {
                named.push(name_of(relation));
                ControlFlow::<()>::Continue(())
            });
            named
        }
        Err(_) => all_names(sql),
    };
    named.sort_unstable();
    named.dedup();
    named
}

fn name_of(name: &ObjectName) -> String {
    let parts: Vec<&str> =
        name.0.iter().filter_map(|part| part.as_ident().map(|ident| ident.value.as_str())).collect();
    parts.join(".")
}

/// Every word that may be a name, and every two with a dot between them.
fn all_names(sql: &str) -> Vec<String> {
    let Ok(tokens) = Tokenizer::new(&MySqlDialect {}, sql).tokenize() else { return vec![] };
    let tokens: Vec<Token> =
        tokens.into_iter().filter(|token| !matches!(token, Token::Whitespace(_))).collect();
    let mut names = vec![];
    for at in 0..tokens.len() {
        if let Token::Word(word) = &tokens[at] {
            names.push(word.value.clone());
            if let (Some(Token::Period), Some(Token::Word(table))) = (tokens.get(at + 1), tokens.get(at + 2))
            {
                names.push(format!("{}.{}", word.value, table.value));
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_that_a_statement_writes_to_are_named() {
        let insert = "INSERT INTO shop.`orders` SELECT * FROM carts c JOIN users u ON u.id = c.id";
        assert_eq!(written(insert), ["shop.orders"]);
        assert_eq!(written("REPLACE INTO t VALUES (?)"), ["t"]);
        assert_eq!(written("UPDATE a JOIN b ON a.n = b.n SET a.m = b.m"), ["a", "b"]);
        assert_eq!(written("DELETE FROM a WHERE n IN (SELECT n FROM b)"), ["a", "b"]);
        assert!(written("SELECT * FROM information_schema.tables").is_empty());
        let odd = written("LOAD DATA LOCAL INFILE 'x' INTO TABLE shop.t FIELDS TERMINATED BY ','");
        assert!(odd.contains(&"shop.t".to_owned()), "{odd:?}");
    }
}
