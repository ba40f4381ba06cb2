//! Numbers of the tenants that have tokens in the ring or a running request.

use std::collections::HashMap;
use std::sync::Arc;

/// Names of tenants, counted by what they are used for. A name that is no longer used is forgotten.
#[derive(Debug)]
pub(super) struct Tenants {
    numbers: HashMap<Arc<str>, u32>,
    /// By number. The first one is for requests without a tenant, and stays.
    tenants: Vec<Tenant>,
    free: Vec<u32>,
    name_bytes: usize,
}

#[derive(Debug)]
struct Tenant {
    name: Option<Arc<str>>,
    uses: u64,
}

impl Tenants {
    pub(super) fn new() -> Self {
        let unnamed = Tenant { name: None, uses: 1 };
        let (numbers, free) = (HashMap::new(), Vec::new());
        Self { numbers, tenants: vec![unnamed], free, name_bytes: 0 }
    }

    /// Number of a tenant, which has one use more.
    pub(super) fn enter(&mut self, name: Option<&str>) -> u32 {
        let number = name.map_or(0, |name| match self.numbers.get(name) {
            Some(number) => *number,
            None => self.add(name),
        });
        self.use_again(number);
        number
    }

    /// Counts one use more.
    pub(super) fn use_again(&mut self, number: u32) {
        self.tenants[number as usize].uses += 1;
    }

    /// Counts one use less. After the last one, another tenant may get the number.
    pub(super) fn leave(&mut self, number: u32) {
        let tenant = &mut self.tenants[number as usize];
        tenant.uses -= 1;
        if tenant.uses == 0
            && let Some(name) = tenant.name.take()
        {
            self.numbers.remove(&name);
            self.name_bytes -= name.len();
            self.free.push(number);
        }
    }

    /// Number of named tenants.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn bytes(&self) -> usize {
        // A slot of the map is a name's pointer, its length and the number, and a byte of control.
        self.name_bytes
            + self.numbers.capacity() * (size_of::<(Arc<str>, u32)>() + 1)
            + self.tenants.capacity() * size_of::<Tenant>()
            + self.free.capacity() * size_of::<u32>()
    }

    fn add(&mut self, name: &str) -> u32 {
        let name: Arc<str> = name.into();
        let tenant = Tenant { name: Some(name.clone()), uses: 0 };
        let number = match self.free.pop() {
            Some(number) => {
                self.tenants[number as usize] = tenant;
                number
            }
            None => {
                self.tenants.push(tenant);
                self.tenants.len() as u32 - 1
            }
        };
        // So that `leave` does not allocate.
        self.free.reserve(self.tenants.len() - self.free.len());
        self.name_bytes += name.len();
        self.numbers.insert(name, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_forgotten_after_its_last_use() {
        let mut tenants = Tenants::new();
        assert_eq!(tenants.enter(None), 0);
        let (a, b) = (tenants.enter(Some("a")), tenants.enter(Some("b")));
        assert_eq!(tenants.enter(Some("a")), a);
        tenants.leave(a);
        assert_eq!(tenants.len(), 2);
        tenants.leave(a);
        assert_eq!(tenants.len(), 1);
        assert_eq!(tenants.enter(Some("c")), a, "a number that is free");
        tenants.leave(b);
        tenants.leave(0);
        assert_eq!((tenants.enter(None), tenants.len()), (0, 1));
    }

    #[test]
    fn no_name_is_no_tenant_by_another_name() {
        let mut tenants = Tenants::new();
        assert_ne!(tenants.enter(None), tenants.enter(Some("")));
    }
}
