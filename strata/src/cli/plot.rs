//! What plots have in common: the font of titles, and colours that people who see colours differently tell apart (Okabe
//! and Ito 2008).

use plotters::style::RGBColor;

/// Font of a title, and its size in pixels.
pub const TITLE: (&str, u32) = ("sans-serif", 18);

pub const BLUE: RGBColor = RGBColor(0, 114, 178);
pub const VERMILLION: RGBColor = RGBColor(213, 94, 0);
pub const GREEN: RGBColor = RGBColor(0, 158, 115);
pub const PURPLE: RGBColor = RGBColor(204, 121, 167);
pub const SKY_BLUE: RGBColor = RGBColor(86, 180, 233);
pub const ORANGE: RGBColor = RGBColor(230, 159, 0);
