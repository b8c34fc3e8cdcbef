//! Values of columns. Texts are stored as `bytea`: those of receivers and runtimes can hold NUL, which `text` cannot, and
//! bytes have one order everywhere. Numbers and times are `int8`; times are nanoseconds since 1970.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio_postgres::types::{FromSqlOwned, ToSql, Type};
use uuid::Uuid;

use forge_base::digest::Digest;
use forge_base::id::{DeliveryId, DispatchId, RunId};
use forge_base::time::{from_nanos, nanos};
use forge_store::record::{DeliveryState, RunStatus, Severity, SignalSource};
use forge_store::{Error, Result};

use crate::open::Holds;

/// A value that a column holds.
pub(crate) trait Cell: Sized {
    /// Types of the column, and of an array of its values.
    const TYPE: Type;
    const ARRAY: Type;
    type Sent<'a>: ToSql + Sync + Send
    where
        Self: 'a;
    type Stored: FromSqlOwned;

    fn send(&self) -> Self::Sent<'_>;
    fn receive(stored: Self::Stored) -> Result<Self>;
}

fn unreadable(what: &str) -> Error {
    Error::Unreadable(format!("a column does not hold {what}"))
}

macro_rules! cell {
    ($type:ty, $sql:ident, $array:ident, $sent:ty, $stored:ty, $send:expr, $receive:expr) => {
        impl Cell for $type {
            const TYPE: Type = Type::$sql;
            const ARRAY: Type = Type::$array;
            type Sent<'a> = $sent;
            type Stored = $stored;

            fn send(&self) -> $sent {
                let send: fn(&Self) -> $sent = $send;
                send(self)
            }

            fn receive(stored: $stored) -> Result<Self> {
                let receive: fn($stored) -> Result<Self> = $receive;
                receive(stored)
            }
        }
    };
}

macro_rules! plain {
    ($type:ty, $sql:ident, $array:ident) => {
        cell!($type, $sql, $array, $type, $type, |value| *value, Ok);
    };
}
plain!(bool, BOOL, BOOL_ARRAY);
plain!(i64, INT8, INT8_ARRAY);
plain!(f64, FLOAT8, FLOAT8_ARRAY);

macro_rules! number {
    ($type:ty) => {
        cell!(
            $type,
            INT8,
            INT8_ARRAY,
            i64,
            i64,
            |value| i64::try_from(*value).unwrap_or(i64::MAX),
            |stored| stored.try_into().map_err(|_| unreadable("such a number"))
        );
    };
}
number!(i8);
number!(u16);
number!(u32);
number!(u64);
number!(usize);

cell!(
    Timestamp,
    INT8,
    INT8_ARRAY,
    i64,
    i64,
    |time| nanos(*time),
    |stored| Ok(from_nanos(stored))
);
cell!(
    Duration,
    INT8,
    INT8_ARRAY,
    i64,
    i64,
    |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX),
    |stored| Ok(Duration::from_nanos(stored.unsigned_abs()))
);

/// Bytes with other types around them. What is sent borrows, because it can be large.
macro_rules! bytes {
    ($type:ty, $send:expr, $receive:expr) => {
        impl Cell for $type {
            const TYPE: Type = Type::BYTEA;
            const ARRAY: Type = Type::BYTEA_ARRAY;
            type Sent<'a> = &'a [u8];
            type Stored = Vec<u8>;

            fn send(&self) -> &[u8] {
                let send: fn(&Self) -> &[u8] = $send;
                send(self)
            }

            fn receive(stored: Vec<u8>) -> Result<Self> {
                let receive: fn(Vec<u8>) -> Result<Self> = $receive;
                receive(stored)
            }
        }
    };
}
bytes!(Vec<u8>, |bytes| bytes, Ok);
bytes!(String, |text| text.as_bytes(), |stored| {
    String::from_utf8(stored).map_err(|_| unreadable("UTF-8"))
});
bytes!(Digest, |digest| digest, |stored| stored
    .try_into()
    .map_err(|_| unreadable("a digest")));
// JSON that is opaque here. What is not JSON comes out as `null`, so that one damaged row does not hide those beside it.
bytes!(Box<RawValue>, |json| json.get().as_bytes(), |stored| {
    let json = String::from_utf8(stored).ok();
    let json = json.and_then(|text| RawValue::from_string(text).ok());
    Ok(json.unwrap_or_else(|| RawValue::NULL.to_owned()))
});

macro_rules! id {
    ($type:ty) => {
        cell!(
            $type,
            UUID,
            UUID_ARRAY,
            Uuid,
            Uuid,
            |id| Uuid::from_bytes(*id.as_bytes()),
            |stored| Ok(<$type>::from_bytes(stored.into_bytes()))
        );
    };
}
id!(DispatchId);
id!(DeliveryId);
id!(RunId);
cell!(Uuid, UUID, UUID_ARRAY, Uuid, Uuid, |id| *id, Ok);

/// An enumeration by the place of each value, which never changes.
macro_rules! code {
    ($type:ident: $($value:ident)+) => {
        cell!(
            $type,
            INT8,
            INT8_ARRAY,
            i64,
            i64,
            |value| {
                let place = [$($type::$value),+].iter().position(|one| one == value);
                place.map_or(-1, |place| place as i64)
            },
            |stored| {
                let all = [$($type::$value),+];
                let value = usize::try_from(stored).ok().and_then(|place| all.get(place));
                value.copied().ok_or_else(|| unreadable(stringify!($type)))
            }
        );
    };
}
code!(DeliveryState: Pending Delivered Dead Superseded);
code!(RunStatus: Planning PlanReview Executing Paused Completed Failed Cancelled);
code!(SignalSource: Agent Engine Execution);
code!(Severity: Info Warning Critical);
code!(Holds: Nothing PartOfCopy Store);

impl<C: Cell> Cell for Option<C> {
    const TYPE: Type = C::TYPE;
    const ARRAY: Type = C::ARRAY;
    type Sent<'a>
        = Option<C::Sent<'a>>
    where
        C: 'a;
    type Stored = Option<C::Stored>;

    fn send(&self) -> Self::Sent<'_> {
        self.as_ref().map(C::send)
    }

    fn receive(stored: Self::Stored) -> Result<Self> {
        stored.map(C::receive).transpose()
    }
}
