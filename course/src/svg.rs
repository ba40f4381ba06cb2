//! A small SVG writer for the pictures of the book: boxes, text, lines, arrows. All lengths are in pixels.

/// Computed before, done.
pub const GREEN: &str = "#dcefdc";
/// Neutral.
pub const BLUE: &str = "#dbe7f5";
/// New.
pub const GOLD: &str = "#f6e9cd";
/// Lost.
pub const RED: &str = "#f5dede";
/// A station of the model, or an empty slot.
pub const WHITE: &str = "#fff";

const INK: &str = "#222";
const GREY: &str = "#555";

/// A picture, 780 wide.
pub struct Svg {
    height: i32,
    body: String,
}

impl Svg {
    /// An empty picture of this height.
    pub fn new(height: i32) -> Self {
        Self { height, body: String::new() }
    }

    /// A box: left, top, width, height.
    pub fn rect(&mut self, [x, y, w, h]: [i32; 4], fill: &str) {
        self.body += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"4\" fill=\"{fill}\" stroke=\"#444\"/>\n"
        );
    }

    /// A surface behind other things.
    pub fn panel(&mut self, [x, y, w, h]: [i32; 4]) {
        self.body += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"6\" fill=\"#f1eee4\"/>\n"
        );
    }

    /// A box with a text in its middle.
    pub fn label(&mut self, at: [i32; 4], fill: &str, text: &str) {
        self.rect(at, fill);
        self.middle(at[0] + at[2] / 2, at[1] + at[3] / 2 + 5, text);
    }

    /// Text that begins at `x`.
    pub fn text(&mut self, x: i32, y: i32, text: &str) {
        self.write(x, y, "start", INK, text);
    }

    /// Text around `x`.
    pub fn middle(&mut self, x: i32, y: i32, text: &str) {
        self.write(x, y, "middle", INK, text);
    }

    /// Text that ends at `x`.
    pub fn end(&mut self, x: i32, y: i32, text: &str) {
        self.write(x, y, "end", INK, text);
    }

    /// Grey text that begins at `x`.
    pub fn note(&mut self, x: i32, y: i32, text: &str) {
        self.write(x, y, "start", GREY, text);
    }

    /// Grey text around `x`.
    pub fn note_middle(&mut self, x: i32, y: i32, text: &str) {
        self.write(x, y, "middle", GREY, text);
    }

    /// Bold text that begins at `x`.
    pub fn title(&mut self, x: i32, y: i32, text: &str) {
        self.write(x, y, "start\" font-weight=\"600", INK, text);
    }

    fn write(&mut self, x: i32, y: i32, anchor: &str, fill: &str, text: &str) {
        self.body += &format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{text}</text>\n"
        );
    }

    /// A line of any width and colour.
    pub fn line(&mut self, from: (i32, i32), to: (i32, i32), width: f64, stroke: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.body += &format!(
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{stroke}\" stroke-width=\"{width:.1}\"/>\n"
        );
    }

    /// A curve that begins and ends vertically and is level around `middle`.
    pub fn curve(&mut self, from: (i32, i32), middle: i32, to: (i32, i32), width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.body += &format!(
            "<path d=\"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}\" fill=\"none\" stroke=\"#8aa9d0\" \
             stroke-width=\"{width:.1}\"/>\n"
        );
    }

    /// An arrow through some points.
    pub fn arrow(&mut self, points: &[(i32, i32)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let points = points.join(" ");
        self.body += &format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"#444\" \
             stroke-width=\"1.4\" marker-end=\"url(#a)\"/>\n"
        );
    }

    /// An arrow that leaves to the left, bulges by `width`, and comes back to the same `x` at another height.
    pub fn arc(&mut self, x: i32, (from, to): (i32, i32), width: i32) {
        let bulge = x - width * 4 / 3;
        self.body += &format!(
            "<path d=\"M{x} {from}C{bulge} {from} {bulge} {to} {x} {to}\" fill=\"none\" stroke=\"#444\" \
             stroke-width=\"1.4\" marker-end=\"url(#a)\"/>\n"
        );
    }

    /// A box with the number of a station and its name.
    pub fn station(&mut self, at: [i32; 4], number: u32, name: &str) {
        self.rect(at, WHITE);
        let (x, y) = (at[0] + 17, at[1] + at[3] / 2);
        self.body += &format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"10\" fill=\"#444\"/>\n");
        self.write(x, y + 5, "middle\" font-weight=\"600", "#fff", &number.to_string());
        self.text(x + 16, y + 5, name);
    }

    /// A plus in a circle: something is added here.
    pub fn plus(&mut self, (x, y): (i32, i32)) {
        self.body += &format!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"9\" fill=\"#fff\" stroke=\"#444\"/>\n\
             <path d=\"M{} {y}h10M{x} {}v10\" stroke=\"#444\" stroke-width=\"1.4\"/>\n",
            x - 5,
            y - 5
        );
    }

    /// A coloured box and what it means.
    pub fn legend(&mut self, x: i32, y: i32, fill: &str, text: &str) {
        self.rect([x, y, 22, 22], fill);
        self.text(x + 30, y + 16, text);
    }

    /// The file. Screen readers read the title and the description.
    pub fn finish(self, title: &str, description: &str) -> String {
        let Self { height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 780 {height}\" role=\"img\" \
             aria-labelledby=\"t d\" font-family=\"ui-sans-serif, system-ui, sans-serif\" font-size=\"14\">\n\
             <title id=\"t\">{title}</title>\n<desc id=\"d\">{description}</desc>\n\
             <defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
             orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#444\"/></marker></defs>\n\
             <rect width=\"780\" height=\"{height}\" rx=\"8\" fill=\"#fcfbf7\"/>\n{body}</svg>\n"
        )
    }
}
