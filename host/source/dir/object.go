package dir

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// object is a decoded object: its model value and its problems.
type object struct {
	kind     string
	name     model.Name
	service  *model.Service
	slice    *model.EndpointSlice
	node     *model.Node
	cidr     *model.ServiceCIDR
	pod      *model.Pod
	mirror   []*model.EndpointSlice // Endpoints: used if the Service of that name has no selector
	selector bool                   // Service: it has a selector
	mirrorOf string                 // EndpointSlice: name of the Endpoints that a cluster mirrored into it
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

// decodeObject decodes and converts an object of a known kind.
func (d *document) decodeObject(raw []byte, id, kind string, name model.Name) {
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
		v, unfit := strictyaml.Decode[corev1.Service](raw)
		fieldErrors = unfit
		dropUnsafeServiceFields(v, unfit)
		v.Namespace = name.Namespace
		o.selector = len(v.Spec.Selector) > 0
		var skip source.Skip
		o.service, skip, problems = source.Service(v)
		if skip == source.SkipNoClusterIP {
			problems = append(problems, source.Problem{Object: objectTitle(kind, name), Field: "spec.clusterIP",
				Err: errors.New("not set; a directory has no allocator, so the Service is not proxied")})
		}
	case kindSlice:
		v, unfit := strictyaml.Decode[discoveryv1.EndpointSlice](raw)
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
		v, unfit := strictyaml.Decode[corev1.Node](raw)
		fieldErrors = unfit
		v.Name = name.Name
		o.node, problems = source.Node(v)
		o.node.Ready = o.node.Ready || !slices.ContainsFunc(v.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	case kindCIDR:
		v, unfit := strictyaml.Decode[networkingv1.ServiceCIDR](raw)
		fieldErrors = unfit
		v.Name = name.Name
		o.cidr, problems = source.ServiceCIDR(v)
	case kindPod:
		v, unfit := strictyaml.Decode[corev1.Pod](raw)
		fieldErrors = unfit
		v.Namespace, v.Name = name.Namespace, name.Name
		o.pod, problems = source.Pod(v, nil)
	case kindEndpoints:
		//lint:ignore SA1019 older manifests contain Endpoints, and clusters mirror them
		v, unfit := strictyaml.Decode[corev1.Endpoints](raw)
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

// setSliceDefaults applies the API server's defaults.
func setSliceDefaults(v *discoveryv1.EndpointSlice) {
	for i := range v.Ports {
		if v.Ports[i].Name == nil {
			v.Ports[i].Name = new(string)
		}
	}
}

// checkName accepts the names that the API server does. They are used in rulesets, logs and metrics.
func checkName(n model.Name) error {
	if n.Name == "" {
		return errors.New("no name")
	}
	for _, s := range []string{n.Name, n.Namespace} {
		bad := strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
		})
		if bad || len(s) > 253 {
			return fmt.Errorf("%.300q is not a name of at most 253 lowercase letters, digits, '-' and '.'", s)
		}
	}
	return nil
}
