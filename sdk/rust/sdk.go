// Package rust has the SDK for plugins in Rust.
package rust

import _ "embed"

// SDK is the text of sluice.rs.
//
//go:embed sluice.rs
var SDK string
