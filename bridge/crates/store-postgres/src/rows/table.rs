//! Tables by the types of their rows: a column has the name of a field.

use super::cell::Cell;
use super::statement::{Columns, Param, Statement, array, param};
use forge_store::Result;

/// Fields of a type in the order of their columns.
pub(crate) trait Fields: Sized {
    fn names(names: &mut Vec<&'static str>);
    fn read(columns: &mut Columns<'_>) -> Result<Self>;
    /// Adds one parameter for each column: the value of the only row, or an array of the values of several.
    fn send<'a>(all: &[&'a Self], params: &mut Vec<Param<'a>>);
}

/// Declares the columns of a type, and those of fields whose own fields are columns.
macro_rules! fields {
    ($type:ty { $($field:ident)* } $($nested:ident: $inner:ty),*) => {
        impl $crate::rows::table::Fields for $type {
            fn names(names: &mut Vec<&'static str>) {
                names.extend([$(stringify!($field)),*]);
                $(<$inner as $crate::rows::table::Fields>::names(names);)*
            }

            fn read(
                columns: &mut $crate::rows::statement::Columns<'_>,
            ) -> forge_store::Result<Self> {
                Ok(Self {
                    $($field: columns.next()?,)*
                    $($nested: $crate::rows::table::Fields::read(columns)?,)*
                })
            }

            fn send<'a>(
                all: &[&'a Self],
                params: &mut Vec<$crate::rows::statement::Param<'a>>,
            ) {
                $(params.push($crate::rows::statement::values(all.iter().map(|row| &row.$field)));)*
                $(
                    let nested: Vec<_> = all.iter().map(|row| &row.$nested).collect();
                    $crate::rows::table::Fields::send(&nested, params);
                )*
            }
        }
    };
}
pub(crate) use fields;

/// Type of the rows of a table. The first column is its primary key.
pub(crate) trait Table: Fields + Clone {
    const NAME: &'static str;
    type Key: Cell + Ord + Clone;

    fn key(&self) -> Self::Key;
}

/// Declares a type whose fields are columns; with the name of a table, that of its rows, whose first column is the key.
macro_rules! row {
    (
        $(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $type:ty),* $(,)? }
        $($nested:ident: $inner:ty),*
    ) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub(crate) struct $name {
            $($(#[$of])* pub(crate) $field: $type,)*
            $(pub(crate) $nested: $inner,)*
        }
        $crate::rows::table::fields!($name { $($field)* } $($nested: $inner),*);
    };
    (
        $(#[$doc:meta])* $name:ident in $table:literal
        { $key:ident: $kind:ty, $($(#[$of:meta])* $field:ident: $type:ty),* $(,)? }
    ) => {
        $crate::rows::table::row!($(#[$doc])* $name { $key: $kind, $($(#[$of])* $field: $type),* });
        $crate::rows::table::keyed!($name in $table by $key: $kind);
    };
}
pub(crate) use row;

/// Names the table of a type, and the field that is its key.
macro_rules! keyed {
    ($type:ident in $table:literal by $key:ident: $kind:ty) => {
        impl $crate::rows::table::Table for $type {
            const NAME: &'static str = $table;
            type Key = $kind;

            fn key(&self) -> $kind {
                self.$key.clone()
            }
        }
    };
}
pub(crate) use keyed;

pub(super) fn names<F: Fields>() -> Vec<&'static str> {
    let mut names = Vec::new();
    F::names(&mut names);
    names
}

/// Names of the columns, each after a prefix such as `d.`.
pub(crate) fn columns<F: Fields>(prefix: &str) -> String {
    let names = names::<F>();
    let names: Vec<_> = names.iter().map(|name| format!("{prefix}{name}")).collect();
    names.join(", ")
}

/// Reads rows by their keys, in the order of the keys, with a clause such as `FOR UPDATE`.
pub(crate) fn select<'a, T: Table>(keys: &[&'a T::Key], clause: &str) -> Statement<'a> {
    let key = names::<T>()[0];
    let (condition, param) = match keys {
        [one] => (format!("{key} = $1"), param(*one)),
        _ => (
            format!("{key} = ANY($1) ORDER BY {key}"),
            array(keys.iter().copied()),
        ),
    };
    let (columns, table) = (columns::<T>(""), T::NAME);
    let sql = format!("SELECT {columns} FROM {table} WHERE {condition} {clause}");
    Statement::new(sql, vec![param])
}

/// Reads and locks the rows whose keys are in an array, such as `$1`, in the order of the keys.
pub(crate) fn lock<'a, T: Table>(keys: &str, params: Vec<Param<'a>>) -> Statement<'a> {
    let key = names::<T>()[0];
    let sql = format!(
        "SELECT {} FROM {} WHERE {key} = ANY({keys}) ORDER BY {key} FOR UPDATE",
        columns::<T>(""),
        T::NAME
    );
    Statement::new(sql, params)
}
