//! Actions of an operator: retry of a delivery, and changes of the receiver's circuit breaker that go with it.

use forge_net as net;
use forge_store::record::{Callback, DeliveryRecord, DueDelivery};
use forge_store::rules;
use url::Url;

use super::{Deliverer, Destination};

impl Deliverer {
    /// Sends a delivery that was made due again at once, also to a receiver whose circuit breaker is open: the attempt
    /// is a probe. Returns the breaker, unless it is closed. A hint like `wake`.
    pub fn retry(&self, delivery: &DeliveryRecord) -> Option<Destination> {
        let now = self.shared.setup.clock.now();
        let url = Url::parse(&delivery.url).ok()?;
        let due = DueDelivery {
            id: delivery.id,
            dispatch: delivery.dispatch_id,
            callback: Callback {
                origin: net::origin(&url),
                url: delivery.url.clone(),
            },
            attempts: delivery.attempt_count,
            since: now,
        };
        self.shared.in_flight.put_first(due, now);
        let destination = self.destination(&delivery.url);
        self.shared.room.notify_one();
        self.wake();
        destination
    }

    /// Probes the receivers at this host (all without one) whose circuit breaker is open, since deliveries to them were
    /// made due again. Returns those that are not closed.
    pub fn retry_many(&self, host: Option<&str>) -> Vec<Destination> {
        let now = self.shared.setup.clock.now();
        let in_flight = &self.shared.in_flight;
        for origin in in_flight.open() {
            if rules::at_host(&origin, host) {
                in_flight.destinations(|all| all.probe(&origin, now));
            }
        }
        let mut tripped = in_flight.snapshot();
        tripped.retain(|destination| rules::at_host(&destination.origin, host));
        self.wake();
        tripped
    }

    /// Closes the circuit breaker of the receiver of this URL, so that everything due there is sent now. Returns false
    /// if it is closed.
    pub fn close(&self, url: &Url) -> bool {
        let origin = net::origin(url);
        let in_flight = &self.shared.in_flight;
        let closed = in_flight.destinations(|all| all.close(&origin));
        if closed {
            tracing::info!(
                delivery.origin = origin,
                "circuit breaker of {origin} closed by an operator"
            );
            self.wake();
        }
        closed
    }

    /// Circuit breaker of the receiver of this URL, unless it is closed.
    pub fn destination(&self, url: &str) -> Option<Destination> {
        let origin = net::origin(&Url::parse(url).ok()?);
        let in_flight = &self.shared.in_flight;
        in_flight.destinations(|all| all.describe(&origin))
    }
}
