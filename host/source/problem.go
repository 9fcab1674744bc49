// Package source turns Kubernetes objects into model values. Where the objects come from is the business of the
// packages below: source/dir reads manifests, source/kube watches a cluster.
//
// A conversion loses only what is bad: each bad field becomes a Problem that names object and field, and the rest of
// the object is used. What an API server refuses to store is refused here too where it could misdirect traffic,
// because a folder of manifests has no API server in front of it.
package source

import (
	"fmt"
	"strings"
)

// Problem is one thing wrong with what a source was given. It is an error value: it says what is wrong, where.
type Problem struct {
	File    string // relative to the folder; "" when the object came from a cluster
	Line    int    // where the object's document starts; 0 when unknown
	Object  string // such as "Service shop/web"; "" when no object could be read
	Field   string // such as "spec.externalIPs[1]"; "" for the object as a whole
	Err     error
	Warning bool // nothing was lost by it
}

// Error gives "file:line: object: field: what is wrong", without the parts that are unknown.
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	for _, s := range []string{p.Object, p.Field} {
		if s != "" {
			b.WriteString(s)
			b.WriteString(": ")
		}
	}
	if p.Err != nil {
		b.WriteString(p.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (p Problem) Unwrap() error { return p.Err }

// problems collects what is wrong with one object.
type problems struct {
	object string
	list   []Problem
}

func (p *problems) add(field, format string, args ...any) {
	p.list = append(p.list, Problem{Object: p.object, Field: field, Err: fmt.Errorf(format, args...)})
}

// Skip says why an object is rightly not proxied; "" when it is.
type Skip string

// Why objects are skipped (host/RULES.md, rules 1, 2 and 4).
const (
	SkipOtherProxy   Skip = "label service.kubernetes.io/service-proxy-name hands it to another proxy"
	SkipHeadless     Skip = "headless"
	SkipExternalName Skip = "type ExternalName is DNS only"
	SkipNoClusterIP  Skip = "no cluster IP"
	SkipNoService    Skip = "no label kubernetes.io/service-name"
	SkipFQDN         Skip = "addressType FQDN"
	SkipInvalid      Skip = "nothing usable in it"
)

// Labels that take Services and EndpointSlices out of a proxy's hands, whatever their value. A watch can select on
// their absence, so that adding one arrives as a deletion.
const (
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	LabelHeadless  = "service.kubernetes.io/headless"
)

// AnnotationPolicy on a Service names the policy that decides for it.
const AnnotationPolicy = "sluice.dev/policy"

func skipLabels(labels map[string]string) Skip {
	if _, ok := labels[LabelProxyName]; ok {
		return SkipOtherProxy
	}
	if _, ok := labels[LabelHeadless]; ok {
		return SkipHeadless
	}
	return ""
}

// NotePreviousKept adds to each error that the previous version of the object stays in use.
func NotePreviousKept(problems []Problem) {
	for i := range problems {
		if !problems[i].Warning {
			problems[i].Err = fmt.Errorf("%w; keeping the previous version of the object", problems[i].Err)
		}
	}
}
