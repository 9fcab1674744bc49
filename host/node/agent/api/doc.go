// Package api is the JSON of the state API: what a running agent answers to `sluice explain`, `status`, `drains`, `trace` and
// kubectl-sluice, and what its status page shows. It has types, and what follows from them alone.
package api
