package dir

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// maxLists bounds how deep lists may lie in lists.
const maxLists = 16

// object is one decoded object: what it converts to, and what is wrong with it.
type object struct {
	kind     string
	name     model.Name
	service  *model.Service
	slice    *model.EndpointSlice
	node     *model.Node
	cidr     *model.ServiceCIDR
	mirror   []*model.EndpointSlice // Endpoints: used when the Service of that name has no selector
	selector bool                   // Service: it has one
	mirrorOf string                 // EndpointSlice: the Endpoints that a cluster made it from
	problems problemList            // without file and line
}

func objectTitle(kind string, name model.Name) string {
	switch {
	case name.Name == "":
		return kind + " without a name"
	case name.Namespace == "":
		return kind + " " + name.Name
	}
	return kind + " " + name.String()
}

// The kinds that are read, as apiVersion and kind.
const (
	kindService   = "v1 Service"
	kindSlice     = "discovery.k8s.io/v1 EndpointSlice"
	kindNode      = "v1 Node"
	kindEndpoints = "v1 Endpoints"
	kindCIDR      = "networking.k8s.io/v1 ServiceCIDR"
)

var kinds = []string{kindService, kindSlice, kindNode, kindEndpoints, kindCIDR}

// decode reads the objects of a document from well-formed JSON.
func (d *document) decode(raw []byte) {
	tree, twice, more := strictyaml.ParseJSON(raw)
	for _, path := range twice {
		d.addProblem("", path, errors.New("is there twice: the last one is used"))
	}
	d.problems.errors += more
	ignored := map[string]*ignoredKind{}
	d.decodeItem(tree, "", "", 0, ignored)
	for _, id := range slices.Sorted(maps.Keys(ignored)) {
		err := fmt.Errorf("%s is not read: ignored", id)
		if n := ignored[id].count; n > 1 {
			err = fmt.Errorf("%w, and %d more", err, n-1)
		}
		d.problems.add(source.Problem{Object: ignored[id].first, Err: err, Warning: true})
	}
}

// ignoredKind counts the objects of a kind that is not read.
type ignoredKind struct {
	first string
	count int
}

func (d *document) addProblem(object, field string, err error) {
	d.problems.add(source.Problem{Object: object, Field: field, Err: err})
}

// decodeItem reads one object, or the items of a list. Items of a typed list may leave out the kind that it implies.
func (d *document) decodeItem(tree any, where, implied string, depth int, ignored map[string]*ignoredKind) {
	if tree == nil {
		return
	}
	m, ok := tree.(map[string]any)
	if !ok {
		d.incomplete = true
		d.addProblem("", where, fmt.Errorf("%s is not an object", strictyaml.Describe(tree)))
		return
	}
	version, kind := stringField(m, "apiVersion"), stringField(m, "kind")
	if version == "" && kind == "" && implied != "" {
		version, kind, _ = strings.Cut(implied, " ")
		m["apiVersion"], m["kind"] = version, kind
	}
	id, itemKind := version+" "+kind, strings.TrimSuffix(version+" "+kind, "List")
	meta, _ := m["metadata"].(map[string]any)
	name := model.Name{Namespace: stringField(meta, "namespace"), Name: stringField(meta, "name")}
	isList := id == "v1 List" || id != itemKind && slices.Contains(kinds, itemKind)
	d.incomplete = d.incomplete || kind == "" || name.Name == "" && !isList
	switch {
	case kind == "":
		d.addProblem("", strictyaml.JoinPath(where, "kind"), errors.New("missing, or no text: nothing is known of this object"))
	case isList:
		d.decodeList(m, where, itemKind, depth, ignored)
	case slices.Contains(kinds, id):
		d.decodeObject(m, id, kind, name)
	case slices.ContainsFunc(kinds, func(k string) bool { return strings.HasSuffix(k, " "+kind) }):
		d.addProblem(objectTitle(kind, name), "apiVersion", fmt.Errorf("%q is not read, only %q", version, versionOf(kind)))
	default:
		if ignored[id] == nil {
			ignored[id] = &ignoredKind{first: objectTitle(kind, name)}
		}
		ignored[id].count++
	}
}

func versionOf(kind string) string {
	for _, id := range kinds {
		if v, k, _ := strings.Cut(id, " "); k == kind {
			return v
		}
	}
	return ""
}

func (d *document) decodeList(m map[string]any, where, implied string, depth int, ignored map[string]*ignoredKind) {
	if implied == "v1 " {
		implied = ""
	}
	items, ok := m["items"].([]any)
	switch {
	case m["items"] == nil:
	case !ok:
		d.addProblem("", strictyaml.JoinPath(where, "items"), fmt.Errorf("%s is not a list", strictyaml.Describe(m["items"])))
	case depth == maxLists:
		d.addProblem("", strictyaml.JoinPath(where, "items"), fmt.Errorf("more than %d lists in lists", maxLists))
	}
	if depth == maxLists {
		return
	}
	for i, it := range items {
		d.decodeItem(it, fmt.Sprintf("%s[%d]", strictyaml.JoinPath(where, "items"), i), implied, depth+1, ignored)
	}
}

// decodeObject decodes and converts one object of a known kind.
func (d *document) decodeObject(m map[string]any, id, kind string, name model.Name) {
	if id == kindNode || id == kindCIDR {
		name.Namespace = ""
	} else if name.Namespace == "" {
		name.Namespace = "default"
	}
	if err := checkName(name); err != nil {
		d.addProblem(objectTitle(kind, name), "metadata", err)
		return
	}
	o := &object{kind: kind, name: name}
	var fieldErrors *strictyaml.FieldErrors
	var problems []source.Problem
	switch id {
	case kindService:
		v, unfit := strictyaml.Decode[corev1.Service](m)
		fieldErrors = unfit
		dropUnsafeServiceFields(v, unfit)
		v.Namespace = name.Namespace
		o.selector = len(v.Spec.Selector) > 0
		var skip source.Skip
		o.service, skip, problems = source.Service(v)
		if skip == source.SkipNoClusterIP {
			problems = append(problems, source.Problem{Object: objectTitle(kind, name), Field: "spec.clusterIP",
				Err: errors.New("none: nothing allocates one in a folder, so the Service is not proxied")})
		}
	case kindSlice:
		v, unfit := strictyaml.Decode[discoveryv1.EndpointSlice](m)
		fieldErrors = unfit
		dropUnsafeSliceFields(v, unfit)
		v.Namespace = name.Namespace
		setSliceDefaults(v)
		if v.Labels[discoveryv1.LabelManagedBy] == source.MirrorController {
			o.mirrorOf = v.Labels[discoveryv1.LabelServiceName]
		}
		var skip source.Skip
		o.slice, skip, problems = source.Slice(v)
		if skip == source.SkipNoService {
			problems = append(problems, source.Problem{Object: objectTitle(kind, name), Field: "metadata.labels",
				Err: fmt.Errorf("no label %s: the slice belongs to no Service", discoveryv1.LabelServiceName)})
		}
	case kindNode:
		v, unfit := strictyaml.Decode[corev1.Node](m)
		fieldErrors = unfit
		v.Name = name.Name
		o.node, problems = source.Node(v)
	case kindCIDR:
		v, unfit := strictyaml.Decode[networkingv1.ServiceCIDR](m)
		fieldErrors = unfit
		v.Name = name.Name
		o.cidr, problems = source.ServiceCIDR(v)
	case kindEndpoints:
		//lint:ignore SA1019 older manifests hold Endpoints, and clusters mirror them
		v, unfit := strictyaml.Decode[corev1.Endpoints](m)
		fieldErrors = unfit
		dropUnsafeEndpointsFields(v, unfit)
		v.Namespace = name.Namespace
		o.mirror, problems = source.Mirror(v)
	}
	for _, p := range fieldErrors.Reported {
		err := p.Err
		if p.Unknown {
			err = fmt.Errorf("%w: ignored", err)
		}
		o.problems.add(source.Problem{Object: objectTitle(kind, name), Field: p.Path, Err: err, Warning: p.Unknown})
	}
	o.problems.errors += fieldErrors.MoreDropped
	o.problems.warnings += fieldErrors.MoreUnknown
	for _, p := range problems {
		if !fieldErrors.Covers(p.Field) {
			o.problems.add(p)
		}
	}
	d.objects = append(d.objects, o)
}

// setSliceDefaults does what the API server does to a slice before it stores it.
func setSliceDefaults(v *discoveryv1.EndpointSlice) {
	for i := range v.Ports {
		if v.Ports[i].Name == nil {
			v.Ports[i].Name = new(string)
		}
	}
}

// checkName holds names to what the API server lets in; they end up in rulesets, logs and metrics.
func checkName(n model.Name) error {
	if n.Name == "" {
		return errors.New("no name")
	}
	for _, s := range []string{n.Name, n.Namespace} {
		bad := strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
		})
		if bad || len(s) > 253 {
			return fmt.Errorf("%.300q is not a name of at most 253 lower-case letters, digits, '-' and '.'", s)
		}
	}
	return nil
}

func stringField(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}
