//! Prompts of the kinds that speculation is meant for, and of the kind that it must not slow down.

/// A program to be edited.
const ACCOUNT: &str = r#"class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        self.history.append(("withdraw", amount))
        return self.balance

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)
        return self.balance, other.balance
"#;

const QUEUE: &str = r#"class RingBuffer:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.items = [None] * capacity
        self.first = 0
        self.count = 0

    def push(self, item):
        if self.count == len(self.items):
            raise OverflowError("the buffer is full")
        end = (self.first + self.count) % len(self.items)
        self.items[end] = item
        self.count += 1

    def pop(self):
        if self.count == 0:
            raise IndexError("the buffer is empty")
        item = self.items[self.first]
        self.items[self.first] = None
        self.first = (self.first + 1) % len(self.items)
        self.count -= 1
        return item
"#;

/// A report to be summarised.
const HARBOUR: &str = "The harbour of Norrvik was closed for three days in October. A storm had torn the outer \
breakwater on the night of the ninth, and stones of up to four tonnes lay in the channel. The harbour master, Ingrid \
Aas, decided within an hour to close the channel for every ship that draws more than two metres. Eleven fishing boats \
and two ferries stayed at the inner quay. The ferries between Norrvik and the islands were replaced by a bus to \
Sandhamn and a smaller boat from there. Divers marked the stones on the tenth and the eleventh, and a crane from the \
shipyard lifted nineteen of them on the twelfth. The channel was opened again on the morning of the thirteenth, at \
first for one ship at a time. The town council will decide in November whether the breakwater is to be rebuilt as it \
was or made two metres higher, which would cost about nine million crowns more.";

const GARDEN: &str = "The school garden began with a heap of rubble behind the gym. In the first spring the pupils of \
the fourth class carried away the stones, and a farmer gave them two loads of soil. They built six raised beds from \
larch boards, each four metres long, and a fence against rabbits. Beans, carrots and pumpkins were sown in May. The \
beans grew well, the carrots were eaten by snails, and the largest pumpkin weighed eleven kilograms. In the second year \
the parents laid a water pipe from the gym, because carrying water in cans had taken the children an hour each day. A \
beekeeper from the village now has three hives beside the compost. The honey is sold at the summer party, and the money \
pays for seeds. The head teacher says that nobody has broken a window of the gym since the garden is there.";

/// What a tool has returned to an agent.
const STATUS: &str = r#"{"service": "billing", "region": "eu-west", "replicas": 4, "healthy": 3, "version": "2.14.1",
 "checks": [
  {"name": "database", "status": "ok", "latency_ms": 12},
  {"name": "queue", "status": "ok", "latency_ms": 5},
  {"name": "mail", "status": "failing", "latency_ms": 2041},
  {"name": "storage", "status": "ok", "latency_ms": 31}
 ]}"#;

/// Instructions and texts of one kind.
pub fn prompts(kind: &str) -> Vec<String> {
    let pair = |asks: [&str; 4], texts: [&str; 2]| -> Vec<String> {
        let of = |(i, ask): (usize, &&str)| format!("{ask}\n\n{}", texts[i % 2]);
        asks.iter().enumerate().map(of).collect()
    };
    match kind {
        "code" => pair(
            [
                "Add a docstring to each method of this Python class, and print the whole class.",
                "Rename the class to Fifo, and print the whole class again.",
                "Rename `amount` to `value`, and print the whole class again.",
                "Print this class again, with type annotations.",
            ],
            [ACCOUNT, QUEUE],
        ),
        "summary" => pair(
            [
                "Summarise this report. Quote the most important sentences word by word.",
                "List the facts of this text, one a line, in the words of the text.",
                "What happened, in the order of the text? Quote it.",
                "Copy the sentences that contain a number.",
            ],
            [HARBOUR, GARDEN],
        ),
        _ => Vec::new(),
    }
}

/// Steps of an agent: each sees what the tool has returned, and reports it.
pub fn agent_steps(steps: usize) -> Vec<String> {
    let step = |i: usize| {
        let status = STATUS.replace("\"replicas\": 4", &format!("\"replicas\": {}", 4 + i % 3));
        format!(
            "Check {i}. The tool returned:\n{status}\nReport the status as JSON, with all checks."
        )
    };
    (0..steps).map(step).collect()
}
