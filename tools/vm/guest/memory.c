/* What is in registered memory: fill, hash, peek, poke. */
#include "agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PEEK 4096

/* Fields mr, off and len, inside the memory region. */
static uint8_t *range(const struct request *r, struct answer *a, uint64_t max, uint64_t *len)
{
    uint64_t off = 0;
    struct memory *m = object(r, a, "mr", MR);
    if (!m || !number(r, a, "off", UINT64_MAX, &off))
        return NULL;
    if (off > m->len) {
        fail(a, "off=%llu is beyond the %zu bytes", (unsigned long long)off, m->len);
        return NULL;
    }
    if (*len == UINT64_MAX)
        *len = m->len - off;
    if (!number(r, a, "len", UINT64_MAX, len))
        return NULL;
    if (*len > m->len - off || *len > max) {
        fail(a, "len=%llu is beyond the %zu bytes of the mr, or %llu", (unsigned long long)*len,
             m->len, (unsigned long long)max);
        return NULL;
    }
    return m->at + off;
}

int verb_fill(const struct request *r, struct answer *a)
{
    uint64_t seed = 0, len = UINT64_MAX;
    uint8_t *at = range(r, a, UINT64_MAX, &len);
    if (!at || !number(r, a, "seed", UINT64_MAX, &seed))
        return -1;
    for (uint64_t p = 0; p < len; p++)
        at[p] = (uint8_t)((((p + 1) * (seed | 1)) * 0x9E3779B97F4A7C15ull) >> 56);
    return 0;
}

/* FNV-1a, 64 bits. */
int verb_hash(const struct request *r, struct answer *a)
{
    uint64_t len = UINT64_MAX, hash = 0xcbf29ce484222325ull;
    const uint8_t *at = range(r, a, UINT64_MAX, &len);
    if (!at)
        return -1;
    for (uint64_t p = 0; p < len; p++)
        hash = (hash ^ at[p]) * 0x100000001b3ull;
    say(a, "fnv=0x%llx", (unsigned long long)hash);
    return 0;
}

int verb_peek(const struct request *r, struct answer *a)
{
    uint64_t len = UINT64_MAX;
    const uint8_t *at = range(r, a, MAX_PEEK, &len);
    if (!at)
        return -1;
    append(&a->fields, " hex=", 5);
    for (uint64_t p = 0; p < len; p++) {
        char two[3];
        snprintf(two, sizeof two, "%02x", at[p]);
        append(&a->fields, two, 2);
    }
    return 0;
}

int verb_poke(const struct request *r, struct answer *a)
{
    const char *hex = text(r, "hex", "");
    uint64_t len = strlen(hex) / 2;
    uint8_t *at = range(r, a, UINT64_MAX, &len);
    if (!at)
        return -1;
    return parse_hex(hex, at, len) ? 0 : fail(a, "hex= needs two digits for each byte");
}
