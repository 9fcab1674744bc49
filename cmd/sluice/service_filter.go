package main

import (
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// serviceFilter is what a command is about: a Service, those of a namespace, or all.
type serviceFilter model.Name

func newServiceFilter(namespace string, args []string) (f serviceFilter, err error) {
	f.Namespace = namespace
	if len(args) == 0 {
		return f, nil
	}
	f.Name = args[0]
	if ns, name, ok := strings.Cut(args[0], "/"); ok {
		f = serviceFilter{ns, name}
	}
	if f.Namespace == "" || f.Name == "" {
		return f, usageError{fmt.Errorf("Service %q: want NAMESPACE/NAME, or -n NAMESPACE NAME", args[0])}
	}
	return f, nil
}

// service returns the name of the Service, "" if there is none.
func (f serviceFilter) service() string {
	if f.Name == "" {
		return ""
	}
	return model.Name(f).String()
}

func (f serviceFilter) has(n model.Name) bool {
	return (f.Namespace == "" || n.Namespace == f.Namespace) && (f.Name == "" || n.Name == f.Name)
}

// errNotFound returns the error that there is no such Service.
func (f serviceFilter) errNotFound() error {
	if f.Name == "" {
		return fmt.Errorf("no Service in namespace %s", f.Namespace)
	}
	return fmt.Errorf("no Service %s", f.service())
}
