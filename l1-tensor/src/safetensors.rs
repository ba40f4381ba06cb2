//! safetensors files in and out.
