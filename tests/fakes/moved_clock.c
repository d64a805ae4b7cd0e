/* The machine's wall clock, CLOCK_AHEAD_S seconds ahead, for a program that loads this by LD_PRELOAD and for all it
   starts: `make test-at`.

   libfaketime 0.9.10 cannot do it for Python 3.11: with a moved monotonic clock threads wait for ever, and without one
   `time.sleep` fails (its issues 390 and 426). Here nothing but the wall clock moves, so every wait takes its own time.
   File times are the kernel's and do not move. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { CARRIED = 2 };
static const char *const names[CARRIED] = {"LD_PRELOAD", "CLOCK_AHEAD_S"};
static char carried[CARRIED][4096];
static time_t ahead_s;

__attribute__((constructor)) static void read_settings(void) {
    for (int i = 0; i < CARRIED; i++) {
        const char *value = getenv(names[i]);
        snprintf(carried[i], sizeof carried[i], "%s=%s", names[i], value ? value : "");
    }
    ahead_s = atol(strchr(carried[1], '=') + 1);
}

/* A test gives what it starts an environment without these: it would have another clock than the test. */
int execve(const char *path, char *const argv[], char *const envp[]) {
    size_t count = 0;
    while (envp && envp[count]) count++;
    char *moved[count + CARRIED + 1];
    size_t kept = 0;
    for (int i = 0; i < CARRIED; i++) moved[kept++] = carried[i];
    for (size_t i = 0; i < count; i++)
        if (strncmp(envp[i], "LD_PRELOAD=", 11) && strncmp(envp[i], "CLOCK_AHEAD_S=", 14)) moved[kept++] = envp[i];
    moved[kept] = NULL;
    return syscall(SYS_execve, path, argv, moved);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead_s;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, at, zone);
    if (!failed) at->tv_sec += ahead_s;
    return failed;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}
