// Package registry pulls WebAssembly modules from OCI registries, by digest, and keeps them on disk.
package registry
