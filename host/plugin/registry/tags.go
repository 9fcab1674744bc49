package registry

import (
	"context"
	"fmt"
	"net/http"
	"regexp"

	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

// MaxTags bounds the tags of a repository that Tags returns.
const MaxTags = 1000

// ofDigest are the tags under which registries keep what belongs to an image: signatures, and lists of referrers.
var ofDigest = regexp.MustCompile(`^sha256-[0-9a-f]{64}(\..+)?$`)

// Tags returns the tags of a repository, REGISTRY/NAME, in the order of the registry, with the image of each. Those of signatures
// are left out.
func (c *Client) Tags(ctx context.Context, of *imageref.TagError) (tags []string, refs []imageref.Ref, err error) {
	registry, repository := of.Split()
	err = c.with(ctx, registry, repository, func(ctx context.Context, repo *remote.Repository) error {
		tags, refs = nil, nil
		if err := repo.Tags(ctx, "", func(page []string) error {
			for _, tag := range page {
				if !ofDigest.MatchString(tag) {
					tags = append(tags, tag)
				}
			}
			if len(tags) > MaxTags {
				return fmt.Errorf("more than %d tags", MaxTags)
			}
			return nil
		}); err != nil {
			return err
		}
		for _, tag := range tags {
			desc, err := repo.Resolve(ctx, tag)
			if err != nil {
				return fmt.Errorf("tag %s: %w", tag, err)
			}
			refs = append(refs, imageref.Ref{Registry: registry, Repository: repository, Digest: desc.Digest.String()})
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("image %s: %w", of.Name, err)
	}
	return tags, refs, nil
}

// Untag deletes a tag. The image stays under its digest and other tags. oras-go deletes by digest only, and with a digest go all
// its tags.
func (c *Client) Untag(ctx context.Context, of *imageref.TagError) error {
	registry, repository := of.Split()
	err := c.with(ctx, registry, repository, func(ctx context.Context, repo *remote.Repository) error {
		if _, err := repo.Resolve(ctx, of.Tag); err != nil { // some registries delete what there is not
			return err
		}
		scheme := "https"
		if repo.PlainHTTP {
			scheme = "http"
		}
		req, err := http.NewRequestWithContext(auth.AppendRepositoryScope(ctx, repo.Reference, auth.ActionDelete), http.MethodDelete,
			scheme+"://"+repo.Reference.Host()+"/v2/"+repository+"/manifests/"+of.Tag, nil)
		if err != nil {
			return err
		}
		resp, err := repo.Client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			return fmt.Errorf("the registry does not delete it: %s", resp.Status)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("image %s:%s: %w", of.Name, of.Tag, err)
	}
	return nil
}
