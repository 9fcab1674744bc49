// Package policy decides the weights of a Service port's eligible endpoints: it binds policies to Services, runs the chain of
// plugins, validates and clamps their answers, and stores the last good decision. It is pure: plugins are an interface, and time
// is a parameter.
package policy
