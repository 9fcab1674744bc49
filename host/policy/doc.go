// Package policy decides what the eligible endpoints of a Service port get: it binds policies to Services, runs the
// chain of plugins, validates and clamps what they answer, and keeps the last good decision. It is pure: plugins come
// in as an interface, time comes in as a value.
package policy
